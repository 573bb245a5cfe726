"""A sandbox with a live command."""

import atoll

with atoll.connect() as client, client.create() as sandbox:
    print(sandbox.run(["python3", "-c", "print(6 * 7)"]).stdout.decode(), end="")
    with sandbox.exec("for i in 1 2 3; do echo line $i; done; read answer; echo $answer >&2", stdin=True) as process:
        process.write(b"done\n")
        for output in process:
            print(output.stream, output.data.decode().rstrip().replace("\n", ", "))
        print("exit", process.wait().code)
