"""The cases of the code interpreter's SDK."""

import asyncio
import base64
import importlib.metadata
import os

import e2b_code_interpreter as sdk

import harness
import methods
from harness import SYNC, Waited, raises, test

Sandbox = Waited(sdk.Sandbox) if SYNC else sdk.AsyncSandbox


class Box:
    """A sandbox for one case."""

    async def __aenter__(self):
        self.sbx = await Sandbox.create(timeout=120)
        return self.sbx

    async def __aexit__(self, *_):
        await self.sbx.kill()


@test("code: results, output, state")
async def _():
    async with Box() as sbx:
        seen = []
        first = await sbx.run_code(
            "x = 20\nprint('out')\nimport sys\nprint('err', file=sys.stderr)\nx + 1",
            on_stdout=lambda m: seen.append(m.line), on_stderr=lambda m: seen.append(m.line), on_result=lambda r: seen.append(r.text),
        )
        assert (first.text, "".join(first.logs.stdout), "".join(first.logs.stderr), first.error) == ("21", "out\n", "err\n", None), first
        assert sorted(seen) == ["21", "err\n", "out\n"], seen
        second = await sbx.run_code("x *= 2; x")
        assert (second.text, second.execution_count) == ("40", 2), second
        assert (await sbx.run_code("import os; os.environ['A']", envs={"A": "b"})).text == "b"
        assert (await sbx.run_code("'%s' % type(os.environ.get('A'))")).text == "<class 'NoneType'>"


@test("code: errors")
async def _():
    async with Box() as sbx:
        told = []
        r = await sbx.run_code("def f():\n    return [][1]\nf()", on_error=told.append)
        assert (r.error.name, r.error.value) == ("IndexError", "list index out of range"), r
        assert "line 2, in f" in r.error.traceback and "kernel.py" not in r.error.traceback, r.error.traceback
        assert told and told[0].name == "IndexError"


@test("code: shapes of results")
async def _():
    async with Box() as sbx:
        r = await sbx.run_code("from IPython.display import HTML\nHTML('<b>bold</b>')")
        assert r.results[0].html == "<b>bold</b>" and r.results[0].is_main_result, r


@test("code: contexts and languages")
async def _():
    async with Box() as sbx:
        context = await sbx.create_code_context(cwd="/tmp")
        assert (context.cwd, context.language) == ("/tmp", "python")
        assert (await sbx.run_code("import os; y = 1; os.getcwd()", context=context)).text == "/tmp"
        assert (await sbx.run_code("y")).error.name == "NameError"
        if hasattr(sdk.Sandbox, "list_code_contexts"):
            assert context.id in [c.id for c in await sbx.list_code_contexts()]
            await sbx.restart_code_context(context)
            assert (await sbx.run_code("y", context=context)).error.name == "NameError"
            await sbx.remove_code_context(context)
            await raises(sbx.run_code("1", context=context), "NotFoundException", "SandboxException")
        assert (await sbx.run_code("const a = 20; a + 1", language="js")).text == "21"
        r = await sbx.run_code("import { join } from 'node:path'\njoin('a', 'b')", language="js")
        assert r.text == "a/b", r
        assert "".join((await sbx.run_code("echo $((6 * 7))", language="bash")).logs.stdout) == "42\n"
        await raises(sbx.run_code("1", language="cobol"), "SandboxException")


@test("code: contexts of a new sandbox")
async def _():
    async with Box() as sbx:
        if hasattr(sdk.Sandbox, "list_code_contexts"):
            assert [c.language for c in await sbx.list_code_contexts()] == ["python", "javascript"]
        for cwd in ["/", "/etc", "/usr/lib"]:
            context = await sbx.create_code_context(cwd=cwd)
            assert (await sbx.run_code("import os; os.getcwd()", context=context)).text == cwd


async def with_packages(sbx):
    """Installs matplotlib and its dependencies in a sandbox whose image lacks them."""
    if packages := os.environ.get("E2B_TEST_PACKAGES"):
        with open(packages, "rb") as f:
            await sbx.files.write("/tmp/packages.tar", f.read())
        await sbx.commands.run("mkdir /tmp/packages && tar -xf /tmp/packages.tar -C /tmp/packages")


@test("code: charts and pictures")
async def _():
    async with Box() as sbx:
        await with_packages(sbx)
        r = await sbx.run_code("""
import sys, datetime; sys.path.append('/tmp/packages')
import matplotlib.pyplot as plt
plt.boxplot([[1, 2, 3, 4, 20], [2, 3, 4, 5, 6]], patch_artist=True); plt.show()
plt.plot([datetime.date(2026, 1, 1), datetime.date(2026, 1, 2)], [0.1, 0.25]); plt.show()
plt.plot([1, 2], ['low', 'high']); plt.show()
plt.bar(['a', 'b'], [3, 0.1]); plt.show()
from PIL import Image
i = Image.new('RGB', (3, 2))
i.show()
i.save('picture.png')""")
        assert r.error is None, r.error
        boxes, dates, words, bars = [x.chart for x in r.results[:4]]
        b = boxes.elements[0]
        assert boxes.type.value == "box_and_whisker" and (b.min, b.first_quartile, b.median, b.third_quartile, b.max, b.outliers) == (1, 2, 3, 4, 4, [20])
        assert isinstance(b.median, float)
        assert (dates.x_scale.value, dates.elements[0].points) == ("datetime", [("2026-01-01", 0.1), ("2026-01-02", 0.25)])
        assert (words.y_scale.value, words.elements[0].points) == ("categorical", [(1, "low"), (2, "high")])
        assert [e.value for e in bars.elements] == [3, 0.1] and isinstance(bars.elements[0].value, float)
        assert len(r.results) == 6 and all(base64.b64decode(x.png)[1:4] == b"PNG" for x in r.results), r.results


@test("code: timeouts and interrupts")
async def _():
    async with Box() as sbx:
        await sbx.run_code("kept = 5")
        await raises(sbx.run_code("while True: pass", timeout=1), "TimeoutException")
        assert (await sbx.run_code("kept")).text == "5"


if "E2B_TEST_CHARTS" in os.environ:  # the image has the packages

    @test("code: charts, images and data frames")
    async def _():
        async with Box() as sbx:
            r = await sbx.run_code("import matplotlib.pyplot as plt\nplt.plot([1, 2, 3], [4, 5, 7], label='growth')\nplt.title('A line')\nplt.show()")
            assert r.error is None, r.error
            assert base64.b64decode(r.results[0].png)[1:4] == b"PNG", r.results
            chart = r.results[0].chart
            assert (chart.type.value, chart.title) == ("line", "A line"), chart
            assert [(e.label, [tuple(p) for p in e.points]) for e in chart.elements] == [("growth", [(1, 4), (2, 5), (3, 7)])], chart.elements
            r = await sbx.run_code("import pandas as pd\npd.DataFrame({'a': [1, 2], 'b': ['x', 'y']})")
            assert r.error is None and "<table" in r.results[0].html, r


harness.VERSION = importlib.metadata.version("e2b-code-interpreter")
asyncio.run(harness.main(lambda: methods.own(sdk.Sandbox if SYNC else sdk.AsyncSandbox)))
