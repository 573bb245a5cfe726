"""Runs code and commands in a sandbox, and reads a file that they made.

    pip install e2b-code-interpreter
    eval "$(atoll e2b env)"
    python main.py
"""

from e2b_code_interpreter import Sandbox

with Sandbox.create(timeout=60) as sandbox:
    sandbox.run_code("numbers = [n * n for n in range(5)]")
    execution = sandbox.run_code("print('computing')\nsum(numbers)", on_stdout=lambda message: print("live:", message.line.strip()))
    print("result:", execution.text)

    execution = sandbox.run_code("numbers[10]")
    print("error:", execution.error.name, execution.error.value)

    sandbox.files.write("/home/user/words.txt", "one\ntwo\nthree\n")
    command = sandbox.commands.run("wc -l < words.txt | tee count.txt")
    print("command:", command.stdout.strip())
    print("file:", sandbox.files.read("/home/user/count.txt").strip())
