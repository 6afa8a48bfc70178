'use strict'

const { randomUUID } = require('node:crypto')
const { setTimeout: sleep } = require('node:timers/promises')

const HEARTBEAT_MS = 200
const CLOSE_TIMEOUT_MS = 5_000
const EARLIEST = '-2'

const name = (topic, partition) => `${topic}/${partition}`

// This client reads as a member of a group alone: partitions that are assigned by hand are those that a group of one
// listens to, a group of its own where none was named.
class ConsumerHandle {
  constructor(kafka, request) {
    this.group = request.group ?? `alone-${randomUUID()}`
    this.wanted = null
    this.held = []
    this.closing = false
    // By partition: the batch that is being handed out, and the offset behind all that is done with.
    this.handing = new Map()
    this.reached = new Map()
    this.admin = kafka.admin()
    this.consumer = kafka.consumer({
      groupId: this.group,
      sessionTimeout: request.session_timeout_ms,
      heartbeatInterval: HEARTBEAT_MS,
      maxWaitTimeInMs: request.max_wait_ms,
      readUncommitted: request.isolation !== 'read_committed',
      allowAutoTopicCreation: false,
    })
    const { GROUP_JOIN, REBALANCING, END_BATCH_PROCESS } = this.consumer.events
    this.consumer.on(GROUP_JOIN, ({ payload }) => {
      this.held = Object.entries(payload.memberAssignment).flatMap(([topic, partitions]) =>
        partitions.map((partition) => [topic, partition])
      )
    })
    this.consumer.on(REBALANCING, () => {
      this.held = []
    })
    // How this client tells of batches in which there is nothing to see.
    this.consumer.on(END_BATCH_PROCESS, ({ payload: { topic, partition, batchSize, lastOffset } }) => {
      if (batchSize === 0) this.reached.set(name(topic, partition), Number(lastOffset) + 1)
    })
  }

  async open() {
    await this.admin.connect()
    await this.consumer.connect()
  }

  async run(topics) {
    await this.consumer.subscribe({ topics, fromBeginning: true })
    await this.consumer.run({
      autoCommit: false,
      eachBatchAutoResolve: false,
      partitionsConsumedConcurrently: 16,
      eachBatch: (payload) => this.handOut(payload),
    })
  }

  // Holds a batch until polls took all of it, and heartbeats meanwhile, which fails where the group rebalances.
  async handOut({ batch, resolveOffset, heartbeat, isRunning, isStale }) {
    const at = name(batch.topic, batch.partition)
    if (this.wanted && !this.wanted.has(at)) {
      resolveOffset(batch.messages.at(-1).offset)
      return
    }
    const left = [...batch.messages]
    this.handing.set(at, { batch, left, resolveOffset })
    try {
      while (left.length > 0 && isRunning() && !isStale() && !this.closing) {
        await sleep(5)
        await heartbeat()
      }
    } finally {
      if (this.handing.get(at)?.left === left) this.handing.delete(at)
    }
  }

  async assign({ partitions, from_committed: fromCommitted }) {
    this.wanted = new Set(partitions.map(([topic, partition]) => name(topic, partition)))
    await this.run([...new Set(partitions.map(([topic]) => topic))])
    if (fromCommitted) return
    for (const [topic, partition] of partitions) this.consumer.seek({ topic, partition, offset: EARLIEST })
  }

  subscribe({ topic }) {
    return this.run([topic])
  }

  async seek({ topic, partition, offset }) {
    this.handing.delete(name(topic, partition))
    this.reached.set(name(topic, partition), offset)
    this.consumer.seek({ topic, partition, offset: String(offset) })
  }

  async poll({ timeout_s: timeoutS }) {
    const deadline = Date.now() + timeoutS * 1000
    while (this.handing.size === 0 && Date.now() < deadline) await sleep(5)
    const found = []
    for (const [at, { batch, left, resolveOffset }] of this.handing) {
      for (const { offset, key, value, headers } of left.splice(0)) {
        found.push({
          topic: batch.topic,
          partition: batch.partition,
          offset: Number(offset),
          key: key?.toString('base64') ?? null,
          value: value?.toString('base64') ?? null,
          headers: Object.entries(headers).map(([header, each]) => [header, each.toString('base64')]),
        })
      }
      resolveOffset(batch.messages.at(-1).offset)
      this.reached.set(at, Number(batch.lastOffset()) + 1)
      this.handing.delete(at)
    }
    return found
  }

  async position({ topic, partition }) {
    return this.reached.get(name(topic, partition)) ?? 0
  }

  commit({ offsets }) {
    return this.consumer.commitOffsets(
      offsets.map(([topic, partition, offset]) => ({ topic, partition, offset: String(offset) }))
    )
  }

  async committed({ topic, partition }) {
    const [{ partitions }] = await this.admin.fetchOffsets({ groupId: this.group, topics: [topic] })
    const offset = Number(partitions.find((each) => each.partition === partition).offset)
    return offset < 0 ? null : offset
  }

  async assignment() {
    return this.held
  }

  async begin_and_end({ topic, partition }) {
    const offsets = await this.admin.fetchTopicOffsets(topic)
    const { low, high } = offsets.find((each) => each.partition === partition)
    return [Number(low), Number(high)]
  }

  async close() {
    this.closing = true
    // It waits for the fetch under way, which the broker may hold for long.
    const closed = Promise.all([this.consumer.disconnect(), this.admin.disconnect()])
    await Promise.race([closed, sleep(CLOSE_TIMEOUT_MS)])
  }
}

module.exports = { ConsumerHandle }
