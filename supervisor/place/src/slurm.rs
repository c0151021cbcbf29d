//! Jobs of Slurm: `srun` carries the stdio, and `squeue` and `scontrol` print the states.
//!
//! Facts about `srun` that the command line respects:
//!
//! - With `--unbuffered` the task's stdout is a terminal, so it is left out.
//! - A missing `--chdir` becomes `/tmp`. `agentd-keeper enter` changes to the session's directory itself, or fails.
//! - `--export` with a list passes only these variables and `SLURM_*`. Without `PATH` the node looks up no program.
//! - A file that `--bcast` wrote and that is executed cannot be written again, so each launch has its own file.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use agentd_api::event::PlaceState;
use jiff::Timestamp;

use crate::state::{EngineState, some};
use crate::{ENTER, LaunchNames, session_and_launch, words};

/// Settings of a place of Slurm.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Slurm {
    /// Partition of the jobs.
    pub partition: Option<String>,
    /// Time limit of the jobs.
    pub time: Option<Duration>,
    /// Memory of the jobs in bytes.
    pub memory: Option<u64>,
    /// Number of processor cores.
    pub cores: Option<u32>,
    /// Number of GPUs.
    pub gpus: Option<u32>,
    /// Licences of Slurm: `NAME` or `NAME:COUNT`.
    pub licenses: Vec<String>,
    /// Account that the jobs are charged to.
    pub account: Option<String>,
    /// Quality of service of the jobs.
    pub qos: Option<String>,
    /// Reservation that the jobs use.
    pub reservation: Option<String>,
    /// Features that the nodes must have.
    pub constraint: Option<String>,
    /// Whether an agent is started again after its node failed or its job was preempted.
    pub requeue: bool,
    /// Further arguments of `srun`.
    pub options: Vec<String>,
    /// Static agentd-keeper on this machine that Slurm copies to the node.
    pub keeper_file: Option<PathBuf>,
    /// Directory of Slurm's programs.
    pub bin: Option<PathBuf>,
}

/// Variable of the environment of Slurm's programs: times are seconds since 1970.
pub(crate) const TIME_FORMAT: (&str, &str) = ("SLURM_TIME_FORMAT", "%s");
/// Search path of the node for a keeper without a path.
const NODE_PATH: &str = "--export=PATH=/usr/local/bin:/usr/bin:/bin";
/// Fields of `squeue`: name, id, state, end, start, nodes, reason. The reason is last, because it may contain `|`.
const FORMAT: &str = "--format=%j|%i|%T|%e|%S|%N|%r";

impl Slurm {
    /// Returns the program of a tool.
    pub(crate) fn tool(&self, name: &str) -> String {
        self.bin.as_ref().map_or_else(|| name.to_owned(), |bin| bin.join(name).display().to_string())
    }

    pub(crate) fn client(&self, keeper: &str, launch: &LaunchNames<'_>) -> Vec<String> {
        let name = launch.name();
        let mut client = self.job("srun", &name, &["--mpi=none", "--quiet"]);
        let program = match &self.keeper_file {
            Some(file) => {
                client.push(format!("--bcast=/tmp/{name}"));
                file.display().to_string()
            }
            None => keeper.to_owned(),
        };
        client.extend(self.options.iter().cloned());
        client.extend([program, ENTER.to_owned()]);
        client
    }

    /// Builds the beginning of the command line that allocates a job: its name, its resources and its terms.
    fn job(&self, tool: &str, name: &str, more: &[&str]) -> Vec<String> {
        let mut client = vec![self.tool(tool), format!("--job-name={name}")];
        client.extend(words(["--nodes=1", "--ntasks=1", "--chdir=/"]));
        client.extend(more.iter().map(|&word| word.to_owned()));
        client.push(NODE_PATH.to_owned());
        let texts = [
            ("partition", &self.partition),
            ("account", &self.account),
            ("qos", &self.qos),
            ("reservation", &self.reservation),
            ("constraint", &self.constraint),
        ];
        client.extend(texts.into_iter().filter_map(|(key, text)| Some(format!("--{key}={}", text.as_ref()?))));
        client.extend(self.time.map(|time| format!("--time={}", minutes_and_seconds(time))));
        client.extend(self.memory.map(|bytes| format!("--mem={}M", bytes.div_ceil(1 << 20))));
        client.extend(self.cores.map(|cores| format!("--cpus-per-task={cores}")));
        client.extend(self.gpus.map(|gpus| format!("--gpus={gpus}")));
        if !self.licenses.is_empty() {
            client.push(format!("--licenses={}", self.licenses.join(",")));
        }
        client
    }

    /// Builds the command line that submits the parent of an agent that stays. agentd itself decides about a requeue.
    /// With `--quiet`, sbatch prints no job.
    pub(crate) fn submit(&self, keeper: &str, launch: &LaunchNames<'_>) -> Vec<String> {
        let name = launch.name();
        let mut submit = self.job("sbatch", &name, &["--parsable", "--no-requeue"]);
        submit.extend(words(["--output=/dev/null", "--error=/dev/null"]));
        submit.extend(self.options.iter().cloned());
        // sbatch puts the text into a script for /bin/sh.
        let keeper = keeper.replace('\'', "'\\''");
        submit.push(format!("--wrap=exec '{keeper}' {ENTER} stay {name}"));
        submit
    }

    /// Builds the command line of a second step in a job.
    pub(crate) fn attach(&self, keeper: &str, name: &str) -> Vec<String> {
        let mut attach = vec![self.tool("srun")];
        attach.extend(words(["--jobid={job}", "--overlap", "--quiet", "--nodes=1", "--ntasks=1", "--chdir=/"]));
        attach.extend(words(["--mpi=none", NODE_PATH, keeper, ENTER, "attach", name]));
        attach
    }

    /// A job that has ended or never existed is no error.
    pub(crate) fn cancel(&self, launch: &LaunchNames<'_>) -> Vec<String> {
        vec![self.tool("scancel"), "--quiet".to_owned(), format!("--name={}", launch.name())]
    }

    pub(crate) fn status(&self) -> Vec<String> {
        let mut status = vec![self.tool("squeue")];
        status.extend(words(["--me", "--noheader", "--states=all", FORMAT]));
        status
    }

    /// Returns `None` if the job is not a number of Slurm.
    pub(crate) fn ended(&self, job: &str) -> Option<Vec<String>> {
        let is_number = !job.is_empty() && job.bytes().all(|byte| byte.is_ascii_digit());
        let mut ended = vec![self.tool("scontrol")];
        ended.extend(words(["--oneliner", "show", "job", job]));
        is_number.then_some(ended)
    }
}

fn minutes_and_seconds(time: Duration) -> String {
    let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
    format!("{}:{:02}", seconds / 60, seconds % 60)
}

/// A state of Slurm and its meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meaning {
    State(PlaceState),
    /// The job has ended, with an explanation for people.
    Ended(&'static str),
    /// The job has ended because of a node or of another job.
    EndedByEngine(&'static str),
    /// Neither running nor queued.
    Other,
}

fn meaning(state: &str) -> Meaning {
    use Meaning::{Ended, EndedByEngine, Other, State};
    match state {
        "PENDING" | "REQUEUED" | "REQUEUE_HOLD" | "REQUEUE_FED" | "RESV_DEL_HOLD" | "SPECIAL_EXIT" => {
            State(PlaceState::Queued)
        }
        "CONFIGURING" | "POWER_UP_NODE" => State(PlaceState::Starting),
        "RUNNING" | "RESIZING" | "SIGNALING" => State(PlaceState::Running),
        "COMPLETING" | "STAGE_OUT" => State(PlaceState::Ending),
        "COMPLETED" => Ended("the job is completed"),
        "CANCELLED" => Ended("the job was cancelled"),
        "FAILED" => Ended("the job failed"),
        "TIMEOUT" => Ended("the job reached its time limit"),
        "DEADLINE" => Ended("the job reached its deadline"),
        "OUT_OF_MEMORY" => Ended("the job reached its memory limit"),
        "LAUNCH_FAILED" => Ended("the node could not start the job"),
        "REVOKED" => Ended("another cluster runs the job"),
        "NODE_FAIL" => EndedByEngine("a node of the job failed"),
        "BOOT_FAIL" => EndedByEngine("a node of the job did not boot"),
        "PREEMPTED" => EndedByEngine("a job with a higher priority took the node"),
        _ => Other,
    }
}

/// Explains the reasons for which most jobs wait.
fn explained(reason: &str) -> Option<&'static str> {
    Some(match reason {
        "Resources" => "waits for free resources",
        "Priority" => "jobs with a higher priority are before it",
        "Licenses" => "waits for a licence",
        "BeginTime" => "waits for its start time",
        "Dependency" => "waits for another job",
        "JobHeldUser" | "JobHeldAdmin" => "is held; scontrol release continues it",
        "PartitionDown" | "PartitionInactive" => "the partition starts no jobs",
        "PartitionTimeLimit" => "requests more time than the partition allows",
        "PartitionNodeLimit" => "requests more nodes than the partition allows",
        "ReqNodeNotAvail" => "a requested node is not available",
        "BadConstraints" => "no node fits the request",
        "Reservation" => "waits for its reservation",
        "QOSMaxJobsPerUserLimit" | "AssocMaxJobsLimit" => "the limit of running jobs is reached",
        "NodeDown" => "a node is down",
        _ => return None,
    })
}

/// Builds the state of a job from its words.
fn described(mut job: EngineState, state: &str, reason: &str, exit: Option<&str>) -> EngineState {
    let reason = if matches!(reason, "None" | "(null)") { "" } else { reason };
    let (sentence, by_engine) = match meaning(state) {
        Meaning::Other => return job.unknown(state),
        Meaning::State(known) => {
            job.state = Some(known);
            job.reason = some(reason);
            if known == PlaceState::Queued {
                job.message = explained(reason).map(str::to_owned);
            }
            return job;
        }
        Meaning::Ended(sentence) => (sentence, false),
        Meaning::EndedByEngine(sentence) => (sentence, true),
    };
    job.state = Some(PlaceState::Ended);
    job.reason = Some(state.to_owned());
    job.is_of_engine = by_engine;
    job.is_of_program = matches!(state, "COMPLETED" | "FAILED");
    let exit = exit.filter(|exit| *exit != "0:0").map(|exit| format!("exit code {exit}"));
    // Slurm 22.05 without cgroups reports a job that exceeded its memory as FAILED with JobLaunchFailure and 0:9.
    let details: Vec<String> = some(reason).into_iter().chain(exit).collect();
    let details = if details.is_empty() { String::new() } else { format!(" ({})", details.join(", ")) };
    job.message = Some(format!("{sentence}{details}"));
    job
}

/// Parses a time of [`TIME_FORMAT`]. Slurm writes `N/A`, `NONE` or `Unknown` for an unknown time.
fn time(text: &str) -> Option<Timestamp> {
    Timestamp::from_second(text.parse().ok()?).ok()
}

/// Parses the output of `squeue`. Of several jobs with one name, a living job counts, and then the latest one.
pub(crate) fn parse_status(output: &str) -> Vec<EngineState> {
    let (mut states, mut indices) = (Vec::<EngineState>::new(), BTreeMap::<String, usize>::new());
    for state in output.lines().filter_map(parse_line) {
        match indices.get(&state.name).and_then(|&index| states.get_mut(index)) {
            Some(known) if rank(known) < rank(&state) => *known = state,
            Some(_) => {}
            None => {
                indices.insert(state.name.clone(), states.len());
                states.push(state);
            }
        }
    }
    states
}

fn rank(state: &EngineState) -> (bool, u64) {
    (!state.is_ended(), state.job.as_ref().and_then(|job| job.parse().ok()).unwrap_or_default())
}

fn parse_line(line: &str) -> Option<EngineState> {
    let mut fields = line.splitn(7, '|').map(str::trim);
    let mut field = || fields.next();
    let (name, job, state, ends, starts, host, reason) =
        (field()?, field()?, field()?, field()?, field()?, field()?, field()?);
    session_and_launch(name)?;
    let is_queued = meaning(state) == Meaning::State(PlaceState::Queued);
    let is_running = meaning(state) == Meaning::State(PlaceState::Running);
    let facts = EngineState {
        job: some(job),
        host: some(host),
        starts: is_queued.then(|| time(starts)).flatten(),
        ends: is_running.then(|| time(ends)).flatten(),
        ..EngineState::named(name)
    };
    Some(described(facts, state, reason, None))
}

/// Parses the output of `scontrol --oneliner show job`.
pub(crate) fn parse_ended(output: &str) -> Option<EngineState> {
    let value = |key: &str| {
        let mut words = output.split_whitespace();
        words.find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
    };
    let known = |text: &&str| !matches!(*text, "(null)" | "");
    let facts = EngineState {
        job: value("JobId").and_then(some),
        host: value("NodeList").filter(known).and_then(some),
        ..EngineState::named(value("JobName")?)
    };
    Some(described(facts, value("JobState")?, value("Reason").unwrap_or_default(), value("ExitCode")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::launch_1;

    #[test]
    fn a_client_without_settings_has_the_options_that_its_stdio_needs() {
        let client = Slurm::default().client("agentd-keeper", &launch_1());
        let expected = "srun --job-name=agentd-k1-x-3 --nodes=1 --ntasks=1 --chdir=/ --mpi=none --quiet \
                        --export=PATH=/usr/local/bin:/usr/bin:/bin agentd-keeper enter";
        assert_eq!(client.join(" "), expected);
    }

    #[test]
    fn each_setting_becomes_its_option() {
        let slurm = Slurm {
            partition: Some("all".to_owned()),
            time: Some(Duration::from_millis(8 * 3_600_000 + 500)),
            memory: Some((4 << 30) + 1),
            cores: Some(4),
            gpus: Some(1),
            licenses: words(["flexlm:1", "hsim"]),
            account: Some("rtl".to_owned()),
            qos: Some("high".to_owned()),
            reservation: Some("r".to_owned()),
            constraint: Some("avx2&ssd".to_owned()),
            requeue: true,
            options: words(["--exclude=b"]),
            keeper_file: Some("/opt/agentd-keeper".into()),
            bin: Some("/opt/slurm/bin".into()),
        };
        let client = slurm.client("agentd-keeper", &launch_1());
        let expected = [
            "--partition=all",
            "--account=rtl",
            "--qos=high",
            "--reservation=r",
            "--constraint=avx2&ssd",
            "--time=480:01",
            "--mem=4097M",
            "--cpus-per-task=4",
            "--gpus=1",
            "--licenses=flexlm:1,hsim",
            "--bcast=/tmp/agentd-k1-x-3",
            "--exclude=b",
            "/opt/agentd-keeper",
            "enter",
        ];
        assert_eq!((client[0].as_str(), &client[8..]), ("/opt/slurm/bin/srun", &expected.map(str::to_owned)[..]));
        let cancel = slurm.cancel(&launch_1());
        assert_eq!(cancel, ["/opt/slurm/bin/scancel", "--quiet", "--name=agentd-k1-x-3"]);
        assert_eq!(slurm.ended("12").unwrap().join(" "), "/opt/slurm/bin/scontrol --oneliner show job 12");
        assert_eq!((slurm.ended("-1"), slurm.ended("")), (None, None));
    }

    #[test]
    fn the_queue_gives_one_state_for_each_launch_of_agentd() {
        // Printed by Slurm 22.05.8.
        let output = "agentd-c-1|17|PENDING|NONE|1796069852||Resources\n\
            agentd-d-1|18|PENDING|NONE|N/A||None\n\
            agentd-b-1|15|RUNNING|1796069852|1796069732|a|None\n\
            agentd-a-1|16|RUNNING|NONE|1796069732|b|None\n\
            agentd-a-1|3|COMPLETED|1796069655|1796069655|a|None\n\
            agentd-o-1|19|FAILED|1796069770|1796069769|a|JobLaunchFailure\n\
            agentd-t-1|20|NODE_FAIL|1796069775|1796069769|b|NodeDown\n\
            agentd-t-2|22|TIMEOUT|1796069955|1796069889|a|TimeLimit\n\
            agentd-t-2|21|TIMEOUT|1796069955|1796069889|a|TimeLimit\n\
            agentd-s-1|23|SUSPENDED|NONE|1796069889|a|held | by kim\n\
            pwd|9|COMPLETED|1796069672|1796069672|a|None\n\
            agentd-x|9|RUNNING|NONE|1796069672|a|None\nnoise\n";
        let states = parse_status(output);
        let shown: Vec<String> = states
            .iter()
            .map(|state| {
                let word = state.state.map_or("-", PlaceState::as_str);
                let [reason, message, job] =
                    [&state.reason, &state.message, &state.job].map(|text| text.as_deref().unwrap_or("-"));
                format!("{} {word} {job} {reason} {message}", state.name)
            })
            .collect();
        let expected = [
            "agentd-c-1 queued 17 Resources waits for free resources",
            "agentd-d-1 queued 18 - -",
            "agentd-b-1 running 15 - -",
            "agentd-a-1 running 16 - -",
            "agentd-o-1 ended 19 FAILED the job failed (JobLaunchFailure)",
            "agentd-t-1 ended 20 NODE_FAIL a node of the job failed (NodeDown)",
            "agentd-t-2 ended 22 TIMEOUT the job reached its time limit (TimeLimit)",
            "agentd-s-1 - 23 - the engine reports the state \"SUSPENDED\"",
        ];
        assert_eq!(shown, expected);
        let seconds =
            |at: usize| (states[at].starts.map(Timestamp::as_second), states[at].ends.map(Timestamp::as_second));
        assert_eq!(seconds(0), (Some(1_796_069_852), None));
        assert_eq!(seconds(2), (None, Some(1_796_069_852)));
        assert_eq!((seconds(3), seconds(6)), ((None, None), (None, None)));
        assert_eq!(states[2].host.as_deref(), Some("a"));
        let of_engine: Vec<&str> = states.iter().filter(|state| state.is_of_engine).map(|state| &*state.name).collect();
        assert_eq!(of_engine, ["agentd-t-1"]);
    }

    #[test]
    fn the_end_of_a_job_has_the_reason_and_the_exit_code() {
        let text = "JobId=22 JobName=agentd-t-2 UserId=root(0) Priority=1 JobState=TIMEOUT Reason=TimeLimit \
                    Dependency=(null) ExitCode=0:15 NodeList=a Command=/bin/sh JobState=COMPLETED\n";
        let end = parse_ended(text).unwrap();
        assert_eq!((end.name.as_str(), end.job.as_deref(), end.host.as_deref()), ("agentd-t-2", Some("22"), Some("a")));
        assert_eq!(end.reason.as_deref(), Some("TIMEOUT"));
        assert_eq!(end.message.as_deref(), Some("the job reached its time limit (TimeLimit, exit code 0:15)"));
        let memory = parse_ended("JobId=1 JobName=agentd-a-1 JobState=OUT_OF_MEMORY Reason=OutOfMemory ExitCode=0:125");
        assert_eq!(memory.unwrap().reason.as_deref(), Some("OUT_OF_MEMORY"));
        let done =
            parse_ended("JobId=1 JobName=agentd-a-1 JobState=COMPLETED Reason=None ExitCode=0:0 NodeList=(null)");
        assert_eq!(done.unwrap().message.as_deref(), Some("the job is completed"));
        assert_eq!(parse_ended("slurm_load_jobs error: Invalid job id specified"), None);
    }
}
