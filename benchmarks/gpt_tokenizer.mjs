// What VS Code counters do at each event: count the whole document. Prints median milliseconds.
import { readFileSync } from 'node:fs'
import { countTokens } from 'gpt-tokenizer/encoding/o200k_base'

const text = readFileSync(process.argv[2], 'utf8')
const runs = Number(process.argv[3])
countTokens(text.slice(0, 1000))
const times = []
let tokens = 0
for (let i = 0; i < runs; i++) {
  const start = performance.now()
  tokens = countTokens(text + 'x'.repeat(i % 2))
  times.push(performance.now() - start)
}
times.sort((a, b) => a - b)
console.log(JSON.stringify({ milliseconds: times[Math.floor(runs / 2)], tokens }))
