// Does with a client library what it is told, a request and an answer on each line: see tests/real_clients.
import { createInterface } from 'node:readline'

const [, , library] = process.argv
const client = await import(`./${library}.mjs`)

// A library may log to standard output; answers alone belong there.
const answer = process.stdout.write.bind(process.stdout)
console.log = console.info = console.warn = console.error

for await (const line of createInterface({ input: process.stdin })) {
  const { do: what, ...given } = JSON.parse(line)
  try {
    answer(JSON.stringify({ result: (await client[what](given)) ?? null }) + '\n')
  } catch (error) {
    answer(JSON.stringify({ error: `${error.stack} ${error.cause ?? ''} ${error.errors ?? ''}` }) + '\n')
  }
}
process.exit(0)
