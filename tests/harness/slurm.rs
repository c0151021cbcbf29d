//! A Slurm of one controller and two nodes, each on a machine of its own, on loopback addresses of its own.
//!
//! The nodes `a` and `b` have two processors each, and there is one licence `flexlm`. Clients run beside the test: they
//! need only the variable `SLURM_CONF`. Jobs run as root, or as [`machine::USER`] with [`machine::UID`].
//!
//! Slurm's configuration cannot contain spaces, and munge trusts a socket only below directories that no other user
//! writes. So the files are in a directory below /tmp.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::machine::{self, Blueprint, Machine};
use super::{process, require, until};

/// Ports of the controller and of the nodes. Each has an address of its own.
const CONTROLLER_PORT: u16 = 6817;
const NODE_PORT: u16 = 6818;

/// Parts of a Slurm that a test chooses.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// Cgroups find and limit the processes of a job, also its daemons. Otherwise Slurm finds them by their parents,
    /// and limits their memory by a look each second.
    pub(crate) has_cgroups: bool,
    /// The node `b` has home directories of its own. Otherwise the nodes share them.
    pub(crate) has_own_homes: bool,
    /// Time after which a node that does not answer is down.
    pub(crate) node_timeout: Duration,
    /// Time from SIGTERM to SIGKILL at the end of a job.
    pub(crate) kill_wait: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            has_cgroups: false,
            has_own_homes: false,
            node_timeout: Duration::from_mins(5),
            kill_wait: Duration::from_secs(30),
        }
    }
}

/// A running Slurm. Dropping it ends its jobs and all processes of its machines, and removes its files.
pub(crate) struct Slurm {
    head: Machine,
    nodes: [Option<Machine>; 2],
    /// `nsenter` of each server.
    servers: Vec<Child>,
    options: Options,
    cgroups: Vec<PathBuf>,
    /// Time until the nodes were idle.
    pub(crate) boot_time: Duration,
    directory: TempDir,
}

const NODES: [&str; 2] = ["a", "b"];

impl Slurm {
    /// Boots a Slurm and waits until both nodes are idle. Skips the test if the machine lacks a requirement.
    pub(crate) async fn boot(options: Options) -> Option<Self> {
        require::slurm()?;
        if options.has_cgroups {
            require::cgroups()?;
        }
        let begun = Instant::now();
        let directory = tempfile::Builder::new().prefix("agentd-slurm-").tempdir_in("/tmp").expect("it can be created");
        let at = directory.path();
        machine::readable(at);
        for name in ["state", "log", "spool-a", "spool-b", "home", "home-b", "munge"] {
            fs::create_dir(at.join(name)).expect("the directory is new");
            machine::readable(&at.join(name));
        }
        for homes in ["home", "home-b"] {
            machine::home(&at.join(homes).join("root"), 0);
            machine::home(&at.join(homes).join("user"), machine::UID);
        }
        configure(at, &options);
        let cgroups = if options.has_cgroups { cgroups(at) } else { Vec::new() };
        let head = blueprint(at, "head").boot();
        let nodes = [None, None];
        let mut slurm =
            Self { head, nodes, servers: Vec::new(), options, cgroups, boot_time: Duration::ZERO, directory };
        slurm.start_munge().await;
        slurm.start_controller();
        for node in NODES {
            slurm.start_node(node);
        }
        until("both nodes are idle", || slurm.sinfo() == "idle\n").await;
        slurm.boot_time = begun.elapsed();
        Some(slurm)
    }

    pub(crate) fn root(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the configuration for the variable `SLURM_CONF` of a client.
    pub(crate) fn conf(&self) -> PathBuf {
        self.root().join("slurm.conf")
    }

    /// Returns the home directory of a job's user, as the nodes name it.
    pub(crate) fn home(&self, uid: u32) -> PathBuf {
        self.root().join("home").join(if uid == 0 { "root" } else { "user" })
    }

    /// Builds the command of a client: `srun`, `squeue`, `scancel`.
    pub(crate) fn client(&self, program: &str) -> Command {
        let mut command = Command::new(format!("/usr/bin/{program}"));
        command.env_clear().env("PATH", "/usr/bin:/bin").env("SLURM_CONF", self.conf());
        command.current_dir("/").stdin(Stdio::null());
        command
    }

    /// Builds the `srun` of a user whose job's stdio are pipes. The job's environment is empty.
    pub(crate) fn srun(&self, uid: u32) -> Command {
        let mut command = self.client("srun");
        command.args(["--quiet", "--export=NONE"]).uid(uid).gid(uid);
        command
    }

    /// Runs a client and returns its standard output and standard error.
    fn said(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.client(program).args(arguments).output().expect("the client can be executed");
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    }

    fn sinfo(&self) -> String {
        let states = self.said("sinfo", &["--noheader", "--Node", "--format=%T"]);
        let mut states: Vec<&str> = states.lines().collect();
        states.dedup();
        states.join("\n") + "\n"
    }

    /// Returns the state of a node in Slurm's words.
    pub(crate) fn node_state(&self, node: &str) -> String {
        self.said("sinfo", &["--noheader", "--Node", "--format=%T", "--nodes", node]).trim_end().to_owned()
    }

    /// Returns a line for each job: number, name, state, nodes or reason.
    pub(crate) fn squeue(&self) -> String {
        self.said("squeue", &["--noheader", "--states=all", "--format=%i %j %T %R"])
    }

    /// Returns a line for each job that is queued or runs.
    pub(crate) fn jobs(&self) -> String {
        self.said("squeue", &["--noheader", "--format=%i %j %T %R"])
    }

    /// Returns the free licences `flexlm`.
    pub(crate) fn free_licences(&self) -> String {
        let said = self.said("scontrol", &["--oneliner", "show", "licenses", "flexlm"]);
        let free = said.split_whitespace().find_map(|word| word.strip_prefix("Free="));
        free.unwrap_or_else(|| panic!("the controller does not name its licences: {said}")).to_owned()
    }

    /// Waits until no job is queued or runs, and until the nodes have no process of a job.
    pub(crate) async fn empty(&self) {
        until(&format!("no job is left of {:?} {:?}", self.jobs(), self.left()), || {
            self.jobs().is_empty() && self.left().is_empty()
        })
        .await;
    }

    /// Describes the processes that are not part of Slurm's own. A step's `slurmstepd` belongs to its job.
    pub(crate) fn left(&self) -> Vec<String> {
        let nodes = self.nodes.iter().flatten().flat_map(|node| node.others(&["slurmd"]));
        nodes.chain(self.head.others(&["munged", "slurmctld", "slurmscriptd"])).collect()
    }

    /// Returns the machine of a node that runs.
    pub(crate) fn node(&self, node: &str) -> &Machine {
        self.nodes[index(node)].as_ref().expect("the node runs")
    }

    /// Returns the ends of all logs.
    fn logs(&self) -> String {
        let mut logs = String::new();
        for name in ["slurmctld", "slurmd-a", "slurmd-b", "servers"] {
            let log = fs::read(self.root().join(format!("log/{name}.log"))).unwrap_or_default();
            let log = String::from_utf8_lossy(&log);
            let lines: Vec<&str> = log.lines().collect();
            let _ = writeln!(logs, "{name}:\n{}", lines[lines.len().saturating_sub(40)..].join("\n"));
        }
        logs
    }

    fn serve(&mut self, mut command: Command) {
        let log = fs::File::options().create(true).append(true).open(self.root().join("log/servers.log"));
        let log = log.expect("the log can be opened");
        command.stdout(log.try_clone().expect("a descriptor can be copied")).stderr(log);
        self.servers.push(command.spawn().expect("nsenter can be executed"));
    }

    async fn start_munge(&mut self) {
        let munge = self.root().join("munge");
        let mut command = self.head.command("/usr/bin/setpriv");
        command.args(["--reuid=munge", "--regid=munge", "--clear-groups", "/usr/sbin/munged", "--foreground"]);
        for file in ["key-file", "socket", "pid-file", "seed-file"] {
            command.arg(format!("--{file}={}/{file}", munge.display()));
        }
        self.serve(command);
        until("munged listens", || std::os::unix::net::UnixStream::connect(munge.join("socket")).is_ok()).await;
    }

    /// Starts the controller, which continues with the jobs that it has saved.
    pub(crate) fn start_controller(&mut self) {
        let mut command = self.head.command("/usr/sbin/slurmctld");
        command.arg("-D").arg("-f").arg(self.conf());
        self.serve(command);
    }

    /// Reports whether the controller answers, without the patience of other clients.
    pub(crate) fn has_controller(&self) -> bool {
        self.said("scontrol", &["ping"]).contains(" is UP")
    }

    /// Waits until the controller has saved the job with this name. It forgets other jobs when it is killed.
    pub(crate) async fn saved(&self, job: &str) {
        let file = self.job_state();
        let has = |saved: Vec<u8>| saved.windows(job.len()).any(|part| part == job.as_bytes());
        until("the controller saves the job", || fs::read(&file).is_ok_and(has)).await;
    }

    fn job_state(&self) -> PathBuf {
        self.root().join("state/job_state")
    }

    /// Returns the jobs as the controller has saved them.
    pub(crate) fn copy_of_jobs(&self) -> Vec<u8> {
        fs::read(self.job_state()).expect("the controller has saved jobs")
    }

    /// Puts saved jobs in place of those of a killed controller, which forgets later jobs.
    pub(crate) fn restore_jobs(&self, saved: &[u8]) {
        fs::write(self.job_state(), saved).expect("the file can be written");
    }

    /// Kills the controller with SIGKILL.
    pub(crate) async fn kill_controller(&self) {
        let all = [self.head.running("slurmctld"), self.head.running("slurmscriptd")].concat();
        assert!(!all.is_empty(), "the controller runs");
        kill_all(&all).await;
    }

    /// Boots the machine of a node.
    pub(crate) fn start_node(&mut self, node: &str) {
        let at = self.root();
        let mut blueprint = blueprint(at, node);
        if self.options.has_own_homes && node == "b" {
            blueprint = blueprint.mount(at.join("home-b"), at.join("home"));
        }
        for group in &self.cgroups {
            let tree = group.parent().expect("it is below its tree");
            blueprint = blueprint.mount(group.join(node), tree);
        }
        let machine = blueprint.boot();
        self.nodes[index(node)] = Some(machine);
        self.start_slurmd(node);
    }

    /// Ends the machine of a node with all its processes, as a loss of power does.
    pub(crate) fn kill_node(&mut self, node: &str) {
        drop(self.nodes[index(node)].take().expect("the node runs"));
    }

    /// Sets a node down, as an administrator does after a loss of power. Slurm itself takes up to half a minute.
    /// `sinfo` may show the processors of its jobs as allocated until another node changes.
    pub(crate) async fn set_down(&self, node: &str) {
        let name = format!("nodename={node}");
        let said = self.said("scontrol", &["update", &name, "state=down", "reason=power"]);
        assert_eq!(said, "", "the node cannot be set down");
        let shown = || self.said("scontrol", &["--oneliner", "show", "node", node]);
        until("the node is down", || shown().contains(" State=DOWN")).await;
    }

    /// Starts the server of a node whose machine runs.
    pub(crate) fn start_slurmd(&mut self, node: &str) {
        let mut command = self.node(node).command("/usr/sbin/slurmd");
        command.args(["-D", "-N", node, "-f"]).arg(self.conf());
        self.serve(command);
    }

    /// Kills the server of a node with SIGKILL. Its jobs continue.
    pub(crate) async fn kill_slurmd(&self, node: &str) {
        let all = self.node(node).running("slurmd");
        assert!(!all.is_empty(), "the node's server runs");
        kill_all(&all).await;
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- Slurm's last words\n{}\n---", self.logs());
        }
        self.nodes = [None, None];
        self.head.end();
        // `nsenter` has ended with its server.
        for server in &mut self.servers {
            let _ = server.wait();
        }
        // Clients that a test has not ended. Their environments name the configuration.
        process::kill_all_of(self.root());
        for group in &self.cgroups {
            remove_groups(group);
        }
    }
}

async fn kill_all(targets: &[u32]) {
    process::signal_each(targets, Signal::SIGKILL);
    process::gone(targets).await;
}

fn index(node: &str) -> usize {
    NODES.iter().position(|name| *name == node).expect("the nodes are a and b")
}

fn blueprint(at: &Path, name: &str) -> Blueprint {
    let homes = at.join("home");
    Blueprint::new(name).accounts(at, &homes.join("root"), &homes.join("user")).mount(at.join("hosts"), "/etc/hosts")
}

/// Writes the files of Slurm and munge.
fn configure(at: &Path, options: &Options) {
    let write = |name: &str, text: String| {
        let file = at.join(name);
        fs::write(&file, text).expect("the directory is new");
        machine::readable(&file);
    };
    let [_, head, a, b] = machine::loopback(CONTROLLER_PORT);
    write("hosts", format!("127.0.0.1 localhost\n{head} head\n{a} a\n{b} b\n"));
    let shown = at.display();
    let tracking = if options.has_cgroups {
        "ProctrackType=proctrack/cgroup\nTaskPlugin=task/cgroup\nJobAcctGatherType=jobacct_gather/none\n"
    } else {
        "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nJobAcctGatherType=jobacct_gather/linux\n\
         JobAcctGatherFrequency=task=1\nJobAcctGatherParams=OverMemoryKill\n"
    };
    let limits = if options.has_cgroups { "v1\nConstrainRAMSpace=yes\n" } else { "v1\n" };
    write("cgroup.conf", format!("CgroupMountpoint=/sys/fs/cgroup\nCgroupPlugin=cgroup/{limits}"));
    let (kill_wait, node_timeout) = (options.kill_wait.as_secs(), options.node_timeout.as_secs());
    write(
        "slurm.conf",
        format!(
            "ClusterName=lab
SlurmctldHost=head({head})
SlurmctldPort={CONTROLLER_PORT}
SlurmdPort={NODE_PORT}
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={shown}/munge/socket
CredType=cred/munge
StateSaveLocation={shown}/state
SlurmdSpoolDir={shown}/spool-%n
SlurmctldPidFile={shown}/slurmctld.pid
SlurmdPidFile={shown}/slurmd-%n.pid
SlurmctldLogFile={shown}/log/slurmctld.log
SlurmdLogFile={shown}/log/slurmd-%n.log
{tracking}AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=2000
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
KillWait={kill_wait}
SlurmdTimeout={node_timeout}
SlurmdParameters=config_overrides
Licenses=flexlm:1
NodeName=a NodeHostname=a NodeAddr={a} CPUs=2 RealMemory=4000 State=UNKNOWN
NodeName=b NodeHostname=b NodeAddr={b} CPUs=2 RealMemory=4000 State=UNKNOWN
PartitionName=all Nodes=a,b Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"
        ),
    );
    let key = at.join("munge/key-file");
    let mut random = vec![0; 1024];
    std::io::Read::read_exact(&mut fs::File::open("/dev/urandom").expect("it is there"), &mut random)
        .expect("it reads");
    fs::write(&key, random).expect("the directory is new");
    fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o400)).expect("root may");
    let owned = Command::new("chown").args(["-R", "munge:munge"]).arg(at.join("munge")).status();
    assert!(owned.expect("chown can be executed").success());
}

/// Creates a cgroup for each controller and node, so that each node is the root of its own.
fn cgroups(at: &Path) -> Vec<PathBuf> {
    let name = at.file_name().expect("it is a directory");
    let groups = ["freezer", "memory"].map(|controller| Path::new("/sys/fs/cgroup").join(controller).join(name));
    for group in &groups {
        for node in NODES {
            fs::create_dir_all(group.join(node)).expect("root may");
        }
    }
    groups.to_vec()
}

/// Removes a cgroup with all groups below it. The kernel removes the last processes from their groups a moment after
/// their end.
fn remove_groups(group: &Path) {
    let begun = Instant::now();
    while group.exists() && begun.elapsed() < Duration::from_secs(5) {
        let _ = Command::new("find")
            .arg(group)
            .args(["-depth", "-type", "d", "-exec", "rmdir", "{}", "+"])
            .stderr(Stdio::null())
            .status();
    }
}
