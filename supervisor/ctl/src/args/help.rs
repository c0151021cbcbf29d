//! The texts at the end of `agentctl --help`.

pub(super) const STATUSES: &str = "\
Exit status:
  0    success; run and prompt: the agent ended the turn itself
  1    failure: the daemon reported an error, or the session, the launch or
       the turn failed; check, validate, config check: something was found;
       doctor: a check failed (a warning is status 0)
  2    the command line is wrong
  3    the daemon cannot be reached or started
  4    refused in the present state: the session's phase does not allow it, a
       name is taken, a queue is full, a question is answered already
  5    run --batch: the session reached one of its limits
  6    run --batch, prompt --schema: the answer does not satisfy its schema
  130  the turn was cancelled, or Ctrl-C left it running
  141  the reader of the output closed it

Environment:
  AGENTD_SOCKET  the daemon's socket, as --socket
  AGENTD_HOST    the machine, as --host; AGENTD_HOST_PROGRAM is the path of
                 agentctl there, if a shell without a terminal does not find it
  AGENTD_URL, AGENTD_TOKEN_FILE
                 the daemon's address over TCP and the file with its token,
                 as --url and --token-file
  NO_COLOR       if set and not empty: no colours, on a terminal either";

pub(super) const EXAMPLES: &str = "\
Examples:
  agentctl run                             talk to the default agent, here
  agentctl run --agent claude --dir ~/src  talk to another agent, elsewhere
  agentctl run \"what is this?\"             ask one thing; stdout is the answer
  agentctl ls -a                           list all sessions
  agentctl attach                          come back to the last session
  agentctl attach k3m                      come back; part of an id is enough
  agentctl stop k3m                        end its agent; resume continues it
  agentctl env k3m                         show its environment, with sources
  agentctl doctor                          find problems and their remedies";
