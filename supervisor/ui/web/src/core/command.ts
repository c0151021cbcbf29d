/** Commands that a person can copy, for the daemon that they concern. */
import { shellWord } from "./remedy";

/** The daemon that a command concerns: its name in paths and for people, and the words by which agentctl reaches it. */
export interface Machine {
  name: string;
  label: string;
  options: readonly string[];
}

/** Name of the machine on which `agentctl ui` runs. */
const THIS = "this";
/** Commands that concern a machine itself, and that `--host` cannot move. */
const BOUND = /^agentctl (service|doctor|config|upgrade-check|adopt|plugin (new|inspect|check|test))\b/;
/** Commands that concern no daemon, or that serve the person's own machine. */
const OWN = /^agentctl (ui|host|man|completions)\b/;

/**
 * Returns a command with the options that name its daemon, or else the machine on which a person must run it.
 *
 * `isBound` says that the command concerns the machine, also if it is none of agentctl.
 */
export function onMachine(command: string, machine?: Machine, isBound = false): { line: string; on?: string } {
  if (machine === undefined) return { line: command };
  const isNamed = /\s--(host|socket|url)\b/.test(command);
  const isOfMachine = isBound || (BOUND.test(command) && !isNamed);
  if (isOfMachine) return machine.name === THIS ? { line: command } : { line: command, on: machine.label };
  if (!/^agentctl \S/.test(command) || OWN.test(command) || isNamed) return { line: command };
  return { line: ["agentctl", ...machine.options.map(shellWord)].join(" ") + command.slice("agentctl".length) };
}
