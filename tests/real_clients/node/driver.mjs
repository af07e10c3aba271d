// Driver for a client library: one request and one response per line of JSON (tests/real_clients).
import { createInterface } from 'node:readline'

const [, , library] = process.argv
const client = await import(`./${library}.mjs`)

// A library may log to standard output, which is reserved for responses.
const respond = process.stdout.write.bind(process.stdout)
console.log = console.info = console.warn = console.error

for await (const line of createInterface({ input: process.stdin })) {
  const { do: action, ...given } = JSON.parse(line)
  try {
    respond(JSON.stringify({ result: (await client[action](given)) ?? null }) + '\n')
  } catch (error) {
    respond(JSON.stringify({ error: `${error.stack} ${error.cause ?? ''} ${error.errors ?? ''}` }) + '\n')
  }
}
process.exit(0)
