'use strict'

const { CompressionTypes } = require('kafkajs')

const COMPRESSIONS = { none: CompressionTypes.None, gzip: CompressionTypes.GZIP, snappy: CompressionTypes.Snappy }

const bytes = (base64) => (base64 === null ? null : Buffer.from(base64, 'base64'))

// Hands its records over in flush: this client's send waits for the answer.
class ProducerHandle {
  constructor(kafka, request) {
    this.compression = COMPRESSIONS[request.compression]
    this.waiting = []
    this.producer = kafka.producer({
      allowAutoTopicCreation: false,
      idempotent: request.idempotent,
      maxInFlightRequests: request.idempotent ? 1 : null,
      ...(request.transactional_id !== null && {
        transactionalId: request.transactional_id,
        transactionTimeout: request.transaction_timeout_ms,
      }),
    })
  }

  open() {
    return this.producer.connect()
  }

  // This client does so within its first transaction(), whose other half is local: that one is kept for begin.
  async init_transactions() {
    this.begun = await this.producer.transaction()
  }

  async begin() {
    this.transaction = this.begun ?? (await this.producer.transaction())
    this.begun = undefined
  }

  async send({ topic, partition, value, key, headers }) {
    const message = { partition, key: bytes(key), value: bytes(value), headers: {} }
    for (const [name, each] of headers) message.headers[name] = bytes(each)
    this.waiting.push([topic, message])
  }

  async flush() {
    const topics = new Map()
    for (const [topic, message] of this.waiting) {
      if (!topics.has(topic)) topics.set(topic, { topic, messages: [] })
      topics.get(topic).messages.push(message)
    }
    this.waiting = []
    if (topics.size === 0) return
    const sender = this.transaction ?? this.producer
    await sender.sendBatch({ acks: -1, compression: this.compression, topicMessages: [...topics.values()] })
  }

  async send_offsets({ consumer, offsets }, handles) {
    const topics = offsets.map(([topic, partition, offset]) => ({
      topic,
      partitions: [{ partition, offset: String(offset) }],
    }))
    await this.transaction.sendOffsets({ consumerGroupId: handles.get(consumer).group, topics })
  }

  async commit() {
    await this.flush()
    await this.transaction.commit()
    this.transaction = undefined
  }

  async abort() {
    this.waiting = []
    await this.transaction.abort()
    this.transaction = undefined
  }

  async close() {
    await this.producer.disconnect()
  }
}

module.exports = { ProducerHandle }
