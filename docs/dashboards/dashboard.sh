#!/bin/sh
# Prints the sessions, questions and failures of an agentd, one line for each change: sh dashboard.sh SOCKET
# Needs curl and jq. Continues over restarts of the daemon, with one connection at a time.
set -eu

socket=$1
kinds=session.state,session.removed,permission.requested,permission.resolved,launch.failed,turn.ended
cursor=$(mktemp)
trap 'rm -f "$cursor"' EXIT
trap 'exit 0' INT TERM

# Turns an event into its cursor, a tab, and its lines with a tab between. Markers without news have no lines.
lines='
  def plain: tostring | gsub("[[:cntrl:]]"; " ");
  def session: "session \(.id) \(.name // "-") \(.phase)";
  def failed: select(.message) | "failure \(.id) \(.message)";
  fromjson? | . as {$session, $kind, $data} | [
    .cursor,
    if $kind == "feed.state" then
      "list \($data.sessions | length) sessions",
      ($data.sessions[] | session, failed, "question \(.id) \(.permissions[]?)")
    elif $kind == "session.state" then $data | session, failed
    elif $kind == "session.removed" then "removed \($data.id)"
    elif $kind == "permission.requested" then
      $data.request | "question \($session) \(.id) \(.title) [\([.options[].id] | join(", "))]"
    elif $kind == "permission.resolved" then "answered \($session) \($data.permission)"
    elif $kind == "launch.failed" then "failure \($session) \($data.reason): \($data.message)"
    elif $kind == "turn.ended" and $data.synthetic then "failure \($session) \($data.synthetic.detail)"
    else empty end
  ] | map(plain) | join("\t")'

while :; do
  after=$(cat "$cursor")
  # A line that a restart cuts is no JSON, and comes again after the last cursor.
  curl --silent --show-error --fail --no-buffer --unix-socket "$socket" \
    "http://agentd/v1/events?kind=$kinds${after:+&after=$after}" |
    jq --unbuffered --raw-input --raw-output "$lines" |
    while IFS= read -r line; do
      printf '%s' "${line%%	*}" > "$cursor"
      case $line in *"	"*) printf '%s\n' "${line#*	}" | tr '\t' '\n' ;; esac
    done
  sleep 1
done
