// Driver for kafkajs. It has one codec, gzip.
import kafkajs from 'kafkajs'
import { readFileSync } from 'node:fs'

const { CompressionTypes, ConfigResourceTypes, Kafka, logLevel } = kafkajs
const CODECS = { none: CompressionTypes.None, gzip: CompressionTypes.GZIP }
// Members send no heartbeat while a fetch waits, which is five seconds by default.
const QUICK = { heartbeatInterval: 200, maxWaitTimeInMs: 200 }
let security = {}
const connected = bootstrap => new Kafka({
  brokers: bootstrap.split(','), logLevel: logLevel.NOTHING, retry: { initialRetryTime: 100, retries: 20 }, ...security
})

// Sets how the clients of further requests connect.
export function secure ({ authority, certificate, key, mechanism, username, password, token }) {
  const own = certificate ? { cert: readFileSync(certificate), key: readFileSync(key) } : {}
  const login = token ? { oauthBearerProvider: async () => ({ value: token }) } : { username, password }
  security = {
    reauthenticationThreshold: 500, // by default it logs in again before each request of a session below ten seconds
    ...(authority && { ssl: { ca: readFileSync(authority), ...own } }),
    ...(mechanism && { sasl: { mechanism: mechanism.toLowerCase(), ...login } })
  }
}

export const traits = () => ({ codecs: Object.keys(CODECS), acks: [0, 1, -1], idempotent: true })

export async function produce ({ bootstrap, topic, values, codec, acks, idempotent }) {
  const producer = connected(bootstrap).producer({ idempotent, maxInFlightRequests: idempotent ? 1 : null })
  await producer.connect()
  const messages = values.map(value => ({ key: value, value, partition: 0 }))
  await producer.send({ topic, acks, compression: CODECS[codec], messages })
  await producer.disconnect()
}

export async function bounds ({ bootstrap, topic, timestamp }) {
  const admin = connected(bootstrap).admin()
  await admin.connect()
  const [{ low, high }] = await admin.fetchTopicOffsets(topic)
  const [{ offset }] = await admin.fetchTopicOffsetsByTimestamp(topic, timestamp)
  await admin.disconnect()
  return [Number(low), Number(high), Number(offset)]
}

export async function read ({ bootstrap, topic, offset, count, group }) {
  const consumer = connected(bootstrap).consumer({ groupId: group, sessionTimeout: 6000, ...QUICK })
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  const found = new Map() // a rebalance returns to the start, so records are read again
  await new Promise((resolve, reject) => {
    consumer.on(consumer.events.CRASH, ({ payload }) => payload.restart || reject(payload.error))
    consumer.run({
      autoCommit: false,
      eachMessage: async ({ message }) => {
        if (Number(message.offset) >= offset) found.set(Number(message.offset), message.value.toString())
        if (found.size === count) resolve()
      }
    }).catch(reject)
    consumer.seek({ topic, partition: 0, offset: String(offset) })
  })
  await consumer.disconnect()
  return [...found]
}

let member
let failure
const taken = { assigned: -1, records: [] }

export async function join ({ bootstrap, topic, group, session }) {
  member = connected(bootstrap).consumer({ groupId: group, sessionTimeout: session, ...QUICK })
  await member.connect()
  member.on(member.events.GROUP_JOIN, ({ payload }) => {
    taken.assigned = (payload.memberAssignment[topic] ?? []).length
  })
  member.on(member.events.CRASH, ({ payload }) => {
    // The library restarts the consumer after a retriable error.
    if (!payload.restart) failure = payload.error
  })
  await member.subscribe({ topic, fromBeginning: true })
  await member.run({
    autoCommitThreshold: 1,
    eachMessage: async ({ partition, message }) => {
      taken.records.push([partition, Number(message.offset), message.value.toString()])
    }
  })
}

export function seen () {
  if (failure) throw failure
  return taken
}

export const leave = () => member.disconnect()

export async function administer ({ bootstrap, topic }) {
  const admin = connected(bootstrap).admin()
  await admin.connect()
  await admin.createTopics({
    topics: [{ topic, numPartitions: 2, configEntries: [{ name: 'cleanup.policy', value: 'compact' }] }]
  })
  await admin.createPartitions({ topicPartitions: [{ topic, count: 3 }] })
  const resource = { type: ConfigResourceTypes.TOPIC, name: topic }
  await admin.alterConfigs({ resources: [{ ...resource, configEntries: [{ name: 'retention.ms', value: '1000' }] }] })
  const described = await admin.describeConfigs({ resources: [resource], includeSynonyms: false })
  const config = Object.fromEntries(described.resources[0].configEntries.map(each => [each.configName, each.configValue]))
  const metadata = await admin.fetchTopicMetadata({ topics: [topic] })
  const listed = (await admin.listTopics()).includes(topic)
  await admin.deleteTopics({ topics: [topic] })
  await admin.disconnect()
  return { partitions: metadata.topics[0].partitions.length, retention: config['retention.ms'], listed }
}
