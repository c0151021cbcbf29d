"""Native tests with stand-ins for the host's functions.

The .toml files beside this one test the component in agentd's sandbox.
"""

import unittest
from unittest.mock import patch

from componentize_py_types import Err
from plugin import EnvironmentProvider
from wit_world.exports.environment_provider import Effect_Prepend, Effect_Set, Effect_Unset, Request
from wit_world.imports.types import Failure_Configuration, Failure_NotFound, Session, Setting, Variable


def provide(settings, environment=(), files=None):
    """Returns the changes if the machine has these files."""

    def read(path):
        if path not in (files or {}):
            raise Err(Failure_NotFound(f'there is no "{path}"'))
        return files[path]

    request = Request(
        Session("s1", None, "demo", "/work", 1),
        [Variable(name, value) for name, value in environment],
        [Setting(key, values) for key, values in settings.items()],
    )
    with patch("wit_world.imports.file.read", read), patch("wit_world.imports.log.write"):
        return EnvironmentProvider().provide(request)


class Provide(unittest.TestCase):
    def test_the_first_directory_is_the_first_on_the_path(self):
        changes = provide({"root": ["/opt/t"], "bin": ["a", "b"]}, files={"/opt/t/VERSION": b"1\n"})
        entries = [change.effect.value.entry for change in changes if isinstance(change.effect, Effect_Prepend)]
        self.assertEqual(entries, [b"/opt/t/b", b"/opt/t/a"])

    def test_a_version_need_not_be_text(self):
        changes = provide({"root": ["/opt/t"]}, files={"/opt/t/VERSION": b" caf\xe9 \n"})
        effects = [change.effect.value for change in changes if isinstance(change.effect, Effect_Set)]
        values = {effect.name: effect.value for effect in effects}
        self.assertEqual(values["TOOLCHAIN_VERSION"], b"caf\xe9")

    def test_only_what_is_there_is_dropped(self):
        environment = [("LD_PRELOAD", b"x")]
        settings = {"root": ["/opt/t"], "drop": ["LD_PRELOAD", "LD_LIBRARY_PATH"]}
        changes = provide(settings, environment, {"/opt/t/VERSION": b"1"})
        dropped = [change.effect.value.name for change in changes if isinstance(change.effect, Effect_Unset)]
        self.assertEqual(dropped, ["LD_PRELOAD"])

    def test_a_setting_that_is_wrong_is_named(self):
        for key, values in [("root", ["t"]), ("bin", ["a:b"]), ("hours", ["0"]), ("version-file", ["a", "b"])]:
            with self.assertRaises(Err) as caught:
                provide({"root": ["/opt/t"], **{key: values}}, files={"/opt/t/VERSION": b"1"})
            self.assertIsInstance(caught.exception.value, Failure_Configuration)
            self.assertEqual(caught.exception.value.value.key, key)

    def test_a_toolchain_that_is_not_there_is_a_failure(self):
        with self.assertRaises(Err) as caught:
            provide({"root": ["/opt/t"]})
        self.assertIsInstance(caught.exception.value, Failure_NotFound)


if __name__ == "__main__":
    unittest.main()
