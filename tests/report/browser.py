"""A headless Chromium for the tests of the HTML page."""

import importlib.util
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BROWSER, DRIVER = "chromium", "chromedriver"


def missing() -> str:
    """Why there can be no browser here; empty if there can."""
    programs = [name for name in (BROWSER, DRIVER) if shutil.which(name) is None]
    if importlib.util.find_spec("selenium") is None:
        programs.append("selenium")
    return f"{' and '.join(programs)} not installed: apt-get install chromium chromium-driver" if programs else ""


@contextmanager
def chromium() -> Iterator[Any]:
    """A headless browser that is told it has no network."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    os.environ["SE_OFFLINE"] = "true"  # selenium looks for no other driver, and sends no statistics
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which(BROWSER) or BROWSER
    for argument in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "window-size=1600,1000"):
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which(DRIVER)))
    try:
        driver.execute_cdp_cmd("Network.enable", {})
        offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
        driver.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
        yield driver
    finally:
        driver.quit()


class Page:
    """A page of `autotp diff` in a browser."""

    def __init__(self, driver: Any, path: Path) -> None:
        self.driver = driver
        driver.get_log("browser")
        driver.get(path.as_uri())

    def all(self, selector: str) -> list[Any]:
        """The elements that a selector finds."""
        return list(self.driver.find_elements("css selector", selector))

    def text(self, selector: str) -> str:
        """The text of the one element that a selector finds."""
        (element,) = self.all(selector)
        return str(element.text)

    def click(self, selector: str) -> None:
        """Click the first element that a selector finds, as a mouse would, wherever it is."""
        clicked = "arguments[0].dispatchEvent(new MouseEvent('click', {bubbles: true}))"
        self.driver.execute_script(clicked, self.all(selector)[0])

    def choose(self, group: str, value: object) -> None:
        """Press a button of one of the switches in the head."""
        self.all(f"#{group} button[data-value='{value}']")[0].click()

    def drag(self, selector: str, right: int, down: int) -> None:
        """Drag from the lower left corner of an element."""
        from selenium.webdriver import ActionChains

        element = self.all(selector)[0]
        corner = -(element.rect["width"] // 2) + 12, element.rect["height"] // 2 - 90
        chain = ActionChains(self.driver, duration=20).move_to_element_with_offset(element, *corner)
        chain.click_and_hold().move_by_offset(right, down).release().perform()

    def wheel(self, selector: str, down: int) -> None:
        """Turn the wheel over an element."""
        from selenium.webdriver import ActionChains
        from selenium.webdriver.common.actions.wheel_input import ScrollOrigin

        origin = ScrollOrigin.from_element(self.all(selector)[0])
        ActionChains(self.driver).scroll_from_origin(origin, 0, down).perform()

    def wait(self, milliseconds: int) -> None:
        """Let the page's own animations end."""
        self.driver.execute_async_script(f"setTimeout(arguments[0], {milliseconds})")

    def type(self, selector: str, text: str) -> None:
        """Type into an element."""
        self.all(selector)[0].send_keys(text)

    def ask(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        return self.driver.execute_script(f"return {script}")

    def errors(self) -> list[str]:
        """What the browser complained of since the last time."""
        return [entry["message"] for entry in self.driver.get_log("browser")]
