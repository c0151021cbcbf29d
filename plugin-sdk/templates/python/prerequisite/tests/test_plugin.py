"""Native tests with stand-ins for the host's functions.

The .toml files beside this one test the component in agentd's sandbox.
"""

import unittest
from unittest.mock import patch

from componentize_py_types import Err
from plugin import PrerequisiteCheck
from wit_world.exports.prerequisite_check import Outcome, Request
from wit_world.imports import network
from wit_world.imports.types import Failure_Configuration, Failure_NotGranted, Setting


def check(settings, comes_to):
    """Returns the report if connecting has this result."""
    given = {"host": ["licence.corp"], "port": ["27000"], **settings}
    request = Request(None, [], [Setting(key, values) for key, values in given.items()])
    with patch("wit_world.imports.network.exchange", side_effect=[comes_to]):
        return PrerequisiteCheck().check(request)


class Check(unittest.TestCase):
    def test_a_server_that_answers_is_told_with_its_address(self):
        report = check({}, network.Exchanged("10.0.0.1", 3, [], network.Ending.COMPLETE))
        self.assertEqual(report.outcome, Outcome.PASS)
        self.assertEqual((report.facts[0].name, report.facts[0].value), ("address", "10.0.0.1"))

    def test_where_it_does_not_the_user_is_told_what_to_do(self):
        names = ["NoSuchHost", "Refused", "Unreachable", "TimedOut"]
        for kind in [getattr(network, f"Problem_{name}") for name in names]:
            report = check({"remedy": ["start the VPN"]}, Err(kind("?")))
            self.assertEqual((report.outcome, report.remedy), (Outcome.FAIL, "start the VPN"), kind)

    def test_a_name_service_that_is_down_tells_nothing_about_the_server(self):
        self.assertEqual(check({}, Err(network.Problem_NotResolved("no answer"))).outcome, Outcome.UNKNOWN)

    def test_what_is_not_granted_is_a_failure_and_no_report(self):
        refused = Failure_NotGranted("licence.corp:27000")
        with self.assertRaises(Err) as caught:
            check({}, Err(network.Problem_Other(refused)))
        self.assertIs(caught.exception.value, refused)

    def test_a_setting_that_is_wrong_is_named(self):
        wrong = [("host", [""]), ("port", ["0"]), ("port", ["65536"]), ("time", ["soon"]), ("remedy", [])]
        for key, values in wrong:
            with self.assertRaises(Err) as caught:
                check({key: values}, Err(network.Problem_Refused("?")))
            self.assertIsInstance(caught.exception.value, Failure_Configuration)
            self.assertEqual(caught.exception.value.value.key, key)


if __name__ == "__main__":
    unittest.main()
