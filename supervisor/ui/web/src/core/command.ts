/** Commands that a person can copy, for the daemon that they concern. */
import { shellWord } from "./remedy";

/** The daemon that a command concerns: its name in paths, and its name for `--host`. */
export interface Machine {
  name: string;
  label: string;
}

/** Name of the machine on which `agentctl ui` runs. Commands find its daemon by themselves. */
const THIS = "this";
/** Commands that concern a machine itself, and that `--host` cannot move. */
const BOUND = /^agentctl (service|doctor|config|upgrade-check|adopt|plugin (new|inspect|check|test))\b/;
/** Commands that concern no daemon, or that serve the person's own machine. */
const OWN = /^agentctl (ui|host|man|completions)\b/;

/**
 * Returns a command with the option that names its daemon, or else the machine on which a person must run it.
 *
 * `isBound` says that the command concerns the machine, also if it is none of agentctl.
 */
export function onMachine(command: string, machine?: Machine, isBound = false): { line: string; on?: string } {
  if (machine === undefined || machine.name === THIS) return { line: command };
  if (isBound) return { line: command, on: machine.label };
  if (!/^agentctl \S/.test(command) || OWN.test(command) || /\s--(host|socket|url)\b/.test(command))
    return { line: command };
  if (BOUND.test(command)) return { line: command, on: machine.label };
  return { line: command.replace("agentctl", `agentctl --host ${shellWord(machine.label)}`) };
}
