"""my-plugin: puts a toolchain into a session's environment.

The types are documented in wit/deps/. Each call runs in a new instance: a global does not keep its value between calls.
"""

from componentize_py_types import Err
from wit_world.exports.environment_provider import (
    Change,
    Effect_File,
    Effect_Prepend,
    Effect_Set,
    Effect_Unset,
    FileContent,
    PathEntry,
    Removal,
)
from wit_world.imports import file, log
from wit_world.imports.types import (
    Capability,
    Description,
    Failure_Configuration,
    Failure_Failed,
    SettingDescription,
    SettingError,
    Variable,
    Want,
)

HOUR = 3_600_000  # milliseconds


def wrong(key, message):
    """Makes the failure for a wrong setting."""
    return Err(Failure_Configuration(SettingError(key, message)))


def mistake(error):
    """Describes an exception and its line. `traceback` does not work here, because it reads source files."""
    place = error.__traceback__
    while place.tb_next:
        place = place.tb_next
    return f"{type(error).__name__}: {error} (line {place.tb_lineno} of {place.tb_frame.f_code.co_filename})"


class Settings:
    """The settings, validated."""

    def __init__(self, settings):
        given = {setting.key: setting.values for setting in settings}
        self.root = self._one(given, "root", None)
        if not self.root.startswith("/"):
            raise wrong("root", f'must be an absolute path, and is "{self.root}"')
        self.bin = given.get("bin", ["bin"])
        for directory in self.bin:
            if directory == "" or ":" in directory:
                raise wrong("bin", f'must be names of directories without a colon, and has "{directory}"')
        self.version_file = self._one(given, "version-file", "VERSION")
        self.drop = given.get("drop", [])
        hours = self._one(given, "hours", "24")
        if not (hours.isascii() and hours.isdigit() and len(hours) <= 4 and 1 <= int(hours) <= 8760):
            raise wrong("hours", f'must be a whole number from 1 to 8760, and is "{hours}"')
        self.hours = int(hours)

    @staticmethod
    def _one(given, key, default):
        values = given.get(key, [] if default is None else [default])
        if len(values) != 1:
            raise wrong(key, f"must be one value, and has {len(values)}")
        return values[0]


class EnvironmentProvider:
    def describe(self):
        setting = SettingDescription
        return Description(
            name="my-plugin",
            version="0.1.0",
            summary="puts a toolchain in front of PATH and says which version it is",
            settings=[
                setting("root", "the toolchain's directory, absolute", True),
                setting("bin", "directories below it that go in front of PATH, in this order; default: bin", False),
                setting("version-file", "the file below it that has its version; default: VERSION", False),
                setting("drop", "variables that are taken away, since they would disturb it; default: none", False),
                setting("hours", "after how many hours its version is looked at again; default: 24", False),
            ],
            wants=[Want(Capability.FILE, ["/**"], "to read the toolchain's version")],
        )

    def provide(self, request):
        try:
            return provide(request)
        except Err:
            raise
        except Exception as error:
            # An uncaught exception ends the call. The crash itself carries no message, so log it.
            log.write(log.Level.ERROR, mistake(error))
            raise


def provide(request):
    settings = Settings(request.settings)
    path = f"{settings.root}/{settings.version_file}"
    # If the file cannot be read, `read` raises the host's failure, which becomes this call's failure.
    version = file.read(path).strip()
    if not version:
        raise Err(Failure_Failed(f'there is no version in "{path}"'))
    log.write(log.Level.INFO, f"the toolchain is at {settings.root}")

    root = settings.root.encode()
    names = {variable.name for variable in request.environment}
    changes = [
        Change(Effect_Unset(Removal(name, f"it would disturb the toolchain at {settings.root}")), None, None)
        for name in settings.drop
        if name in names
    ]
    # The entry that is prepended last comes first in PATH.
    for directory in reversed(settings.bin):
        entry = f"{settings.root}/{directory}".encode()
        changes.append(Change(Effect_Prepend(PathEntry("PATH", entry)), None, None))
    changes.append(Change(Effect_Set(Variable("TOOLCHAIN_ROOT", root)), None, None))
    # Values are bytes in any encoding.
    valid_for = settings.hours * HOUR
    changes.append(Change(Effect_Set(Variable("TOOLCHAIN_VERSION", version)), path, valid_for))
    content = b"root = " + root + b"\nversion = " + version + b"\n"
    changes.append(Change(Effect_File(FileContent("TOOLCHAIN_CONFIG", "toolchain.conf", content)), path, valid_for))
    return changes
