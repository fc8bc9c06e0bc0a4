"""A platform that comes as a plugin is picked up by vLLM and works behind the gateway.

vllm-ascend is found through the entry point group `vllm.platform_plugins`. So is
the package of this test, tests/plugins/fake_platform: the CPU under another
name, which writes down in which processes vLLM has turned to it.
"""

from __future__ import annotations

from tests.e2e.herd import Herd
from tests.e2e.support import E2E, streaming

pytestmark = E2E


async def test_vllm_picks_up_the_platform_of_a_plugin(herd: Herd) -> None:
    async with streaming(await herd.cramped.ready(), "One", max_new_tokens=3) as stream:
        frames, complete = await stream.rest()
    assert complete
    assert frames[-1]["details"]["finish_reason"] == "length"
    marks = herd.plugin.marks()
    ours, engine = herd.cramped.pid, herd.cramped.engine().pid
    assert {(ours, "chosen"), (ours, "options"), (ours, "config")} <= marks
    assert (engine, "chosen") in marks
