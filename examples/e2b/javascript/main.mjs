// Runs code and commands in a sandbox, and reads a file that they made.
//
//     npm install @e2b/code-interpreter
//     eval "$(atoll e2b env)"
//     node main.mjs
import { Sandbox } from '@e2b/code-interpreter'

const sandbox = await Sandbox.create({ timeoutMs: 60_000 })
try {
  await sandbox.runCode('numbers = [n * n for n in range(5)]')
  const sum = await sandbox.runCode("print('computing')\nsum(numbers)", { onStdout: (message) => console.log('live:', message.line.trim()) })
  console.log('result:', sum.text)

  const js = await sandbox.runCode('[1, 2, 3].map((n) => n * 2)', { language: 'js' })
  console.log('javascript:', JSON.stringify(js.results[0].json))

  await sandbox.files.write('/home/user/words.txt', 'one\ntwo\nthree\n')
  const command = await sandbox.commands.run('wc -l < words.txt | tee count.txt')
  console.log('command:', command.stdout.trim())
  console.log('file:', (await sandbox.files.read('/home/user/count.txt')).trim())
} finally {
  await sandbox.kill()
}
