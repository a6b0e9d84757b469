"""Which tests of `tests/docs` a worker of xdist gets together."""

from xdist.scheduler import LoadScopeScheduling

from tests.support.longest_first import PAGES

OF_SITE = ("tests/docs/test_browser.py", "tests/docs/test_llms_txt.py", "tests/docs/test_site.py")


class DocsScheduler(LoadScopeScheduling):
    """Gives all tests of the site to one worker, which builds it, and each page to any.

    The mark `xdist_group` does not work with pytest 9.2: pytest-xdist issue 1386.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if file == PAGES:
            return nodeid
        return "site" if file in OF_SITE else file
