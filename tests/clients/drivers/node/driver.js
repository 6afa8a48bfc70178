// Serves the requests of tests/clients/driver_process.py with kafkajs, one after the other.
'use strict'

const readline = require('node:readline')
const { CompressionCodecs, CompressionTypes, Kafka, logLevel } = require('kafkajs')
const { ConsumerHandle } = require('./consumer')
const { ProducerHandle } = require('./producer')

// It comes with gzip alone; this is the codec that its makers give for snappy.
CompressionCodecs[CompressionTypes.Snappy] = require('kafkajs-snappy')

const handles = new Map()

const kafka = (request) =>
  new Kafka({
    brokers: [request.bootstrap],
    logLevel: logLevel.WARN,
    // Its own logger writes to stdout, which is the protocol's.
    logCreator: () => (entry) => console.error(JSON.stringify(entry)),
    // A fetch may wait for longer than other requests.
    requestTimeout: 30_000 + (request.max_wait_ms ?? 0),
    // A broker that restarts is away for longer than this client tries by itself.
    retry: { initialRetryTime: 100, maxRetryTime: 1_000, retries: 50 },
  })

async function serve(request) {
  if (request.op === 'producer' || request.op === 'consumer') {
    const Handle = request.op === 'producer' ? ProducerHandle : ConsumerHandle
    const handle = new Handle(kafka(request), request)
    await handle.open()
    handles.set(handles.size + 1, handle)
    return handles.size
  }
  return (await handles.get(request.handle)[request.op](request, handles)) ?? null
}

function* causes(error) {
  for (let each = error; each; each = each.cause ?? each.originalError) yield each
}

// A write of a fenced producer is told INVALID_PRODUCER_EPOCH, and this client hands that on.
const fenced = (error) =>
  [...causes(error)].some(({ type }) => type === 'PRODUCER_FENCED' || type === 'INVALID_PRODUCER_EPOCH')

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const request = JSON.parse(line)
    let answer
    try {
      answer = { id: request.id, ok: true, result: await serve(request) }
    } catch (error) {
      console.error(error)
      const said = { class: error.name, message: String(error.message), fenced: fenced(error) }
      answer = { id: request.id, ok: false, error: said }
    }
    process.stdout.write(JSON.stringify(answer) + '\n')
  }
  process.exit(0)
}

main()
