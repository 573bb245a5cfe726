import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { test } from 'node:test'

import { anthropicResult, fromAnthropic, fromOpenAI, type ModelAction, type models, openaiOutput } from '../src/index.js'

interface Case {
  tool: 'openai' | 'anthropic'
  given: ModelAction
  actions: models.ComputerAction[] | null
}

const cases = JSON.parse(readFileSync(new URL('../../../testdata/computer.json', import.meta.url), 'utf8')) as Case[]
const tools = { openai: fromOpenAI, anthropic: fromAnthropic }

for (const c of cases) {
  test(`${c.tool}: ${JSON.stringify(c.given)}`, () => {
    const ask = () => tools[c.tool](c.given)
    if (c.actions === null) assert.throws(ask, TypeError)
    else assert.deepEqual(ask(), c.actions)
  })
}

test('answers to models', () => {
  const answer = { screenshot: { png: 'QUJD', width: 2, height: 1 }, cursor: { x: 3, y: 4 } }
  assert.equal(openaiOutput('c1', answer).output.image_url, 'data:image/png;base64,QUJD')
  const said = anthropicResult('t1', answer)
  assert.deepEqual(
    said.content.map((c) => c.type),
    ['text', 'image'],
  )
})
