"""An out-of-tree vLLM platform for a test, found the way vllm-ascend is found."""


def register() -> str:
    """The entry point of the group `vllm.platform_plugins`."""
    return "fake_platform.platform.FakePlatform"
