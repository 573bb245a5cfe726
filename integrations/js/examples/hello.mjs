import { connect } from '@atoll/sdk'

const client = await connect()
const sandbox = await client.create()
try {
  const { stdout } = await sandbox.run(['python3', '-c', 'print(6 * 7)'])
  console.log(stdout.toString().trim())

  const process = await sandbox.exec('for i in 1 2 3; do echo line $i; done; echo done >&2')
  for await (const { stream, data } of process) console.log(stream, data.toString().trim().replaceAll('\n', ', '))
  console.log('exit', (await process.wait()).code)
} finally {
  await sandbox.destroy()
  await client.close()
}
