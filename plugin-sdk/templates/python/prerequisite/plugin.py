"""my-plugin: checks that a server can be reached.

The types are documented in wit/deps/. Each call runs in a new instance: a global does not keep its value between calls.
"""

from componentize_py_types import Err
from wit_world.exports.prerequisite_check import CheckDescription, Fact, Moment, Outcome, Report
from wit_world.imports import log, network
from wit_world.imports.types import (
    Capability,
    Description,
    Failure_Configuration,
    SettingDescription,
    SettingError,
    Want,
)


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
        self._given = {setting.key: setting.values for setting in settings}
        self.host = self._one("host")
        if self.host == "":
            raise wrong("host", "must not be empty")
        self.port = self._number("port", 65535)
        self.time = self._number("time", 60000, "2000")
        self.remedy = self._one("remedy") if "remedy" in self._given else None

    def _one(self, key, *default):
        values = self._given.get(key, default)
        if len(values) != 1:
            raise wrong(key, f"must be one value, and has {len(values)}")
        return values[0]

    def _number(self, key, most, *default):
        text = self._one(key, *default)
        if not (text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= most):
            raise wrong(key, f'must be a whole number from 1 to {most}, and is "{text}"')
        return int(text)


class PrerequisiteCheck:
    def describe(self):
        setting = SettingDescription
        plugin = Description(
            name="my-plugin",
            version="0.1.0",
            summary="checks that a server can be reached",
            settings=[
                setting("host", "the server's name or address", True),
                setting("port", "its TCP port", True),
                setting("time", "how many milliseconds it may take to answer; default: 2000", False),
                setting("remedy", "what the user can do where it does not answer; default: nothing is said", False),
            ],
            wants=[Want(Capability.NETWORK, ["*:*"], "to connect to the server that the settings name")],
        )
        return CheckDescription(plugin, Moment.BEFORE_ENVIRONMENT)

    def check(self, request):
        try:
            return check(request)
        except Err:
            raise
        except Exception as error:
            # An uncaught exception ends the call. The crash itself carries no message, so log it.
            log.write(log.Level.ERROR, mistake(error))
            raise


def check(request):
    settings = Settings(request.settings)
    server = f"{settings.host}:{settings.port}"

    def fails(summary):
        return Report(Outcome.FAIL, summary, [], settings.remedy, None)

    try:
        # An exchange without steps only connects.
        done = network.exchange(settings.host, settings.port, [], settings.time)
    except Err as error:
        match error.value:
            case network.Problem_NoSuchHost():
                return fails(f'there is no host "{settings.host}"')
            case network.Problem_Refused():
                return fails(f"no server listens at {server}")
            case network.Problem_Unreachable():
                return fails(f"there is no route to {server}")
            case network.Problem_TimedOut():
                return fails(f"{server} did not answer within {settings.time} ms")
            case network.Problem_NotResolved(why):
                summary = f'the address of "{settings.host}" cannot be determined: {why}'
                return Report(Outcome.UNKNOWN, summary, [], None, None)
            case network.Problem_Other(failure):
                raise Err(failure)  # return the host's failure unchanged
    facts = [Fact("address", done.address), Fact("connected after", f"{done.connected} ms")]
    return Report(Outcome.PASS, f"{server} answers", facts, None, None)
