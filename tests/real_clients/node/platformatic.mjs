// Driver for @platformatic/kafka. It has zstd if Node does.
import {
  Admin, compressionsAlgorithms, Consumer, ConfigResourceTypes, IncrementalAlterConfigOperationTypes, MessagesStreamModes,
  Producer, stringDeserializers, stringSerializers
} from '@platformatic/kafka'
import { readFileSync } from 'node:fs'

let security = {}
const base = (bootstrap, clientId) =>
  ({ clientId, bootstrapBrokers: bootstrap.split(','), retries: 20, retryDelay: 200, ...security })

// Sets how the clients of further requests connect.
export function secure ({ authority, certificate, key, mechanism, username, password, token }) {
  const own = certificate ? { cert: readFileSync(certificate), key: readFileSync(key) } : {}
  security = {
    ...(authority && { tls: { ca: readFileSync(authority), ...own } }),
    ...(mechanism && { sasl: { mechanism, ...(token ? { token } : { username, password }) } })
  }
}

export const traits = () => ({
  codecs: Object.entries(compressionsAlgorithms).filter(([, each]) => each.available !== false).map(([name]) => name),
  acks: [0, 1, -1],
  idempotent: true
})

export async function produce ({ bootstrap, topic, values, codec, acks, idempotent }) {
  const producer = new Producer({ ...base(bootstrap, 'producer'), serializers: stringSerializers })
  const messages = values.map(value => ({ topic, key: value, value, partition: 0 }))
  await producer.send({ messages, acks, idempotent, compression: codec })
  await producer.close()
}

export async function bounds ({ bootstrap, topic, timestamp }) {
  const consumer = new Consumer({ ...base(bootstrap, 'bounds'), groupId: 'unused' })
  const at = async time => Number((await consumer.listOffsets({ topics: [topic], timestamp: time })).get(topic)[0])
  const found = [await at(-2n), await at(-1n), await at(BigInt(timestamp))]
  await consumer.close(true)
  return found
}

export async function read ({ bootstrap, topic, offset, count, group }) {
  const consumer = new Consumer({ ...base(bootstrap, 'reader'), groupId: group, deserializers: stringDeserializers })
  const stream = await consumer.consume({
    topics: [topic], mode: MessagesStreamModes.MANUAL, offsets: [{ topic, partition: 0, offset: BigInt(offset) }],
    autocommit: false, maxWaitTime: 500, sessionTimeout: 6000, heartbeatInterval: 500
  })
  const found = []
  for await (const message of stream) {
    found.push([Number(message.offset), message.value])
    if (found.length === count) break
  }
  await stream.close()
  await consumer.close(true)
  return found
}

let member
let stream
let failure
let beginning
let leaving = false
const records = []

export function join (given) {
  beginning = begin(given)
  return beginning
}

async function begin (given) {
  const { bootstrap, topic, group, session } = given
  const mine = new Consumer({
    ...base(bootstrap, 'member'), groupId: group, deserializers: stringDeserializers,
    sessionTimeout: session, heartbeatInterval: 200, rebalanceTimeout: Math.max(session, 5000)
  })
  mine.on('error', error => restart(given, mine, error))
  member = mine
  stream = await mine.consume({
    topics: [topic], mode: MessagesStreamModes.COMMITTED, fallbackMode: 'earliest', autocommit: true, maxWaitTime: 500
  })
  stream.on('error', error => restart(given, mine, error))
  stream.on('data', message => records.push([message.partition, Number(message.offset), message.value]))
}

// A stream ends with a retriable error after the library's last retry. It also ends if it commits after its session
// has expired: the request then has no member id, and the agent closes the connection.
function restart (given, ended, error) {
  if (member !== ended || leaving) return
  console.error(error)
  if (error.findBy?.('canRetry', false) && !error.findBy('needsRejoin', true)) {
    failure = error
    return
  }
  member = null
  beginning = ended.close(true).catch(console.error).then(() => begin(given)).catch(problem => { failure = problem })
}

export function seen ({ topic }) {
  if (failure) throw failure
  const mine = (member?.assignments ?? []).find(each => each.topic === topic)
  return { records, assigned: mine?.partitions.length ?? 0 }
}

export async function leave () {
  await beginning
  leaving = true
  await stream.close()
  await member.close(true)
}

export async function administer ({ bootstrap, topic }) {
  const admin = new Admin(base(bootstrap, 'admin'))
  await admin.createTopics({ topics: [topic], partitions: 2, replicas: 1, configs: [{ name: 'cleanup.policy', value: 'compact' }] })
  await admin.createPartitions({ topics: [{ name: topic, count: 3, assignments: null }] })
  const resource = { resourceType: ConfigResourceTypes.TOPIC, resourceName: topic }
  const set = { name: 'retention.ms', configOperation: IncrementalAlterConfigOperationTypes.SET, value: '1000' }
  await admin.incrementalAlterConfigs({ resources: [{ ...resource, configs: [set] }] })
  const [{ configs }] = await admin.describeConfigs({ resources: [{ ...resource, configurationKeys: ['retention.ms'] }] })
  const metadata = await admin.metadata({ topics: [topic] })
  const listed = (await admin.listTopics()).includes(topic)
  const partitions = metadata.topics.get(topic).partitionsCount
  await admin.deleteTopics({ topics: [topic] })
  await admin.close()
  return { partitions, retention: configs.find(each => each.name === 'retention.ms').value, listed }
}
