"""A real browser, a scripted server, and a microphone that beeps or plays a file."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.browser.fake_server import PATIENCE_S, FakeServer

QUIET = (
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-domain-reliability",
    "--disable-extensions",
    "--disable-gpu",
    "--disable-sync",
    "--mute-audio",
    "--no-first-run",
    "--no-default-browser-check",
)
FAKE_MICROPHONE = ("--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream")

Launch = Callable[..., Browser]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of the system's Chromium."""
    path = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if path is None and os.environ.get("ASSISTANT_REQUIRE_BROWSER") == "1":
        pytest.fail("ASSISTANT_REQUIRE_BROWSER=1, but no chromium was found")
    if path is None:
        pytest.skip("no chromium: install it, or name it in the environment as CHROMIUM")
    return path


# Of a module, not of the session: while Playwright runs, its event loop occupies the main thread,
# where later tests want to run theirs.
@pytest.fixture(scope="module")
def launch(chromium: str) -> Iterator[Launch]:
    """Start one more browser, with these arguments; it is closed at the end."""
    expect.set_options(timeout=1000 * PATIENCE_S)
    with sync_playwright() as playwright, ExitStack() as stack:

        def start(*arguments: str) -> Browser:
            browser = playwright.chromium.launch(
                executable_path=chromium, args=[*QUIET, *arguments]
            )
            stack.callback(browser.close)
            return browser

        yield start


@pytest.fixture(scope="module")
def browser(launch: Launch) -> Browser:
    """A browser that may use its microphone, which beeps once a second."""
    return launch(*FAKE_MICROPHONE)


@pytest.fixture(scope="session")
def running_server() -> Iterator[FakeServer]:
    with FakeServer() as server:
        yield server


@pytest.fixture
def server(running_server: FakeServer) -> Iterator[FakeServer]:
    """The scripted server; a script that fails, fails the test."""
    running_server.reset()
    yield running_server
    assert running_server.failures == []


@pytest.fixture
def page(browser: Browser, server: FakeServer) -> Iterator[Page]:
    """A fresh page that is not open yet; an error in its own code fails the test."""
    errors: list[str] = []
    # Waiting for a condition evaluates text in the page, which its policy rightly forbids.
    with browser.new_context(bypass_csp=True) as context:
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        yield page
    assert errors == []
