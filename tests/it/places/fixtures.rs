//! The engines themselves, without agentd: they run programs, carry bytes, can be killed, and leave nothing.

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use crate::harness::container::{IMAGE, Podman};
use crate::harness::machine::{UID, USER};
use crate::harness::slurm::{Options, Slurm};
use crate::harness::sshd::{Far, Login};
use crate::harness::static_keeper::static_keeper;
use crate::harness::{process, require, until};

/// A program that leaves its session and its parent, and answers to no signal but SIGKILL.
const DAEMON: &str = "trap '' HUP TERM INT; setsid sleep 1000 > /dev/null 2>&1 < /dev/null &";

/// Runs the command, which must succeed, and returns its output.
fn run(mut command: Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn piped(mut command: Command) -> Child {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Writes every byte many times to the program, which returns what it reads, and compares.
fn echoes(command: Command) {
    let sent: Vec<u8> = (0..1 << 20_u32).map(|at: u32| at.to_le_bytes()[0] ^ at.to_le_bytes()[1]).collect();
    let mut child = piped(command);
    let mut stdin = child.stdin.take().unwrap();
    let bytes = sent.clone();
    let writer = std::thread::spawn(move || stdin.write_all(&bytes));
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(status.success(), "{status}: {}", String::from_utf8_lossy(&stderr));
    assert!(stdout == sent, "{} bytes of {} came back, or others", stdout.len(), sent.len());
}

/// A program that returns each line. It runs until its stdin ends.
struct Lines(Child);

impl Lines {
    fn open(command: Command) -> Self {
        let mut lines = Self(piped(command));
        lines.returns("first");
        lines
    }

    fn send(&mut self, line: &str) {
        writeln!(self.0.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    fn receive(&mut self, line: &str) {
        let mut read = vec![0; line.len() + 1];
        self.0.stdout.as_mut().unwrap().read_exact(&mut read).unwrap();
        assert_eq!(String::from_utf8(read).unwrap(), format!("{line}\n"));
    }

    fn returns(&mut self, line: &str) {
        self.send(line);
        self.receive(line);
    }

    fn ends(mut self) -> Option<i32> {
        drop(self.0.stdin.take());
        self.0.wait().unwrap().code()
    }
}

/// Fails if a process, a mount or a file of an engine is left after its end.
fn assert_gone(root: &Path, processes: &[u32]) {
    let alive: Vec<String> =
        processes.iter().filter(|&&pid| process::is_alive(pid)).map(|&pid| process::described(pid)).collect();
    assert!(alive.is_empty(), "{alive:#?}");
    process::assert_only(&[], root, "a process is left");
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap().replace("\\040", " ");
    assert!(!mounts.contains(root.to_str().unwrap()), "{mounts}");
    assert!(!root.exists(), "{} is left", root.display());
}

#[tokio::test]
async fn a_far_machine_runs_programs_of_its_user_and_carries_their_bytes() {
    for login in [Login::Root, Login::Ordinary] {
        let Some(far) = Far::boot(login, "").await else { return };
        let said = run(far.command("echo hello; id -un; hostname; pwd; echo $HOME"));
        let (name, home) = (login.name(), far.home());
        assert_eq!(said, format!("hello\n{name}\nfar\n{home}\n{home}\n", home = home.display()));
        echoes(far.command("cat"));
        run(far.command("echo there > file"));
        assert_eq!(fs::read_to_string(home.join("file")).unwrap(), "there\n");
        assert!(far.log().contains(&format!("Accepted publickey for {name}")), "{}", far.log());

        // A daemon outlives its connection, and the machine's end ends it.
        run(far.command(DAEMON));
        let left = far.left();
        assert!(left.len() == 1 && left[0].contains("sleep 1000"), "{left:?}");
        let (root, processes) = (far.root().to_owned(), far.machine().processes());
        drop(far);
        assert_gone(&root, &processes);
    }
}

#[tokio::test]
async fn an_sshd_can_be_stopped_killed_and_started_again_at_its_port() {
    let Some(mut far) = Far::boot(Login::Root, "").await else { return };
    let mut open = Lines::open(far.command("cat"));
    far.stop().await;
    assert_eq!(far.command("true").status().unwrap().code(), Some(255), "no new connection is accepted");
    open.returns("an open connection continues");
    far.start().await;
    run(far.command("true"));
    far.kill().await;
    assert_eq!(open.ends(), Some(255));
    far.start().await;
    run(far.command("true"));
    assert_eq!(far.login(), Login::Root);
}

#[tokio::test]
async fn a_pulled_cable_loses_packets_without_a_word() {
    let Some(far) = Far::on_a_cable(Login::Ordinary, "").await else { return };
    let mut open = Lines::open(far.command("cat"));
    far.machine().pull_cable();
    open.send("second");
    until("the line is sent again", || far.machine().sends_again()).await;
    assert!(open.0.try_wait().unwrap().is_none(), "the client does not know it");
    far.machine().plug_cable();
    open.receive("second");
    assert_eq!(open.ends(), Some(0));
}

#[tokio::test]
async fn a_job_of_slurm_runs_and_carries_its_bytes() {
    let Some(slurm) = Slurm::boot(Options::default()).await else { return };
    eprintln!("Slurm booted in {:?}", slurm.boot_time);
    for uid in [0, UID] {
        let mut hello = slurm.srun(uid);
        hello.args(["--nodelist=b", "/bin/sh", "-c", "echo hello; /usr/bin/id -u; /usr/bin/hostname"]);
        assert_eq!(run(hello), format!("hello\n{uid}\nb\n"));
        let mut cat = slurm.srun(uid);
        cat.arg("/bin/cat");
        echoes(cat);
    }
    slurm.empty().await;
    assert!(slurm.squeue().is_empty() || slurm.squeue().contains("COMPLETED"), "{}", slurm.squeue());
    let processes = [slurm.node("a").processes(), slurm.node("b").processes()].concat();
    let root = slurm.root().to_owned();
    drop(slurm);
    assert_gone(&root, &processes);
}

/// Starts a job that leaves a daemon, and returns the descriptions of the daemon after the job.
async fn daemon_of_a_job(slurm: &Slurm) -> Vec<String> {
    let mut job = slurm.srun(UID);
    job.env("PATH", "/usr/bin:/bin").args(["/bin/sh", "-c", &format!("PATH=/usr/bin:/bin; {DAEMON} sleep 0.2")]);
    run(job);
    until("the job is over", || slurm.jobs().is_empty()).await;
    slurm.left().into_iter().filter(|one| one.contains("sleep 1000")).collect()
}

#[tokio::test]
async fn slurm_leaves_a_daemon_of_a_job_alive_unless_cgroups_track_it() {
    let Some(slurm) = Slurm::boot(Options::default()).await else { return };
    assert_eq!(daemon_of_a_job(&slurm).await.len(), 1, "{:?}", slurm.left());
    drop(slurm);

    let options = Options { has_cgroups: true, kill_wait: Duration::from_secs(1), ..Options::default() };
    let Some(slurm) = Slurm::boot(options).await else { return };
    assert_eq!(daemon_of_a_job(&slurm).await, [""; 0]);
    slurm.empty().await;
    let groups = PathBuf::from("/sys/fs/cgroup/freezer").join(slurm.root().file_name().unwrap());
    assert!(groups.join("a").exists());
    let root = slurm.root().to_owned();
    drop(slurm);
    assert_gone(&root, &[]);
    assert!(!groups.exists(), "{groups:?} is left");
}

#[tokio::test]
async fn the_parts_of_slurm_can_be_killed_and_started_again() {
    let options = Options {
        has_own_homes: true,
        node_timeout: Duration::from_secs(5),
        kill_wait: Duration::from_secs(2),
        ..Options::default()
    };
    let Some(mut slurm) = Slurm::boot(options).await else { return };
    let home = slurm.home(UID);
    let at = |slurm: &Slurm, node: &str, line: &str| {
        let mut job = slurm.srun(UID);
        job.arg(format!("--nodelist={node}")).args(["--chdir", home.to_str().unwrap(), "/bin/sh", "-c", line]);
        run(job)
    };
    at(&slurm, "a", "echo here > file");
    assert_eq!(at(&slurm, "b", "test -e file || echo none"), "none\n", "each node has a home of its own");

    // A job that holds the licence keeps another in the queue.
    let mut holder = slurm.srun(UID);
    holder.args(["--licenses=flexlm", "--nodelist=a", "--job-name=holder", "/bin/cat"]);
    let mut holder = Lines::open(holder);
    assert_eq!(slurm.free_licences(), "0");
    let mut queued = slurm.srun(UID);
    queued.args(["--licenses=flexlm", "--job-name=queued", "/bin/true"]);
    let mut queued = piped(queued);
    until("the second job waits", || slurm.jobs().contains("queued PENDING (Licenses)")).await;

    slurm.saved("queued").await;
    slurm.kill_controller().await;
    holder.returns("a job continues without the controller");
    slurm.start_controller();
    until("the controller is back", || slurm.jobs().contains("holder RUNNING a")).await;
    slurm.kill_slurmd("a").await;
    holder.returns("a job continues without the server of its node");
    slurm.start_slurmd("a");
    assert_eq!(holder.ends(), Some(0));
    assert!(queued.wait().unwrap().success());

    let mut lost = slurm.srun(0);
    lost.args(["--nodelist=b", "--job-name=lost", "/bin/sleep", "1000"]);
    let mut lost = piped(lost);
    // A job is called running before its program is started.
    until("the job's program runs", || !slurm.node("b").running("sleep").is_empty()).await;
    slurm.kill_node("b");
    until("the node is down", || slurm.node_state("b").starts_with("down")).await;
    // Slurm 22.05 ends `srun` with status 0 then.
    lost.wait().unwrap();
    assert!(slurm.squeue().contains("lost NODE_FAIL"), "{}", slurm.squeue());
    slurm.start_node("b");
    until("the node is back", || slurm.node_state("b") == "idle").await;
    assert_eq!(at(&slurm, "b", "echo back"), "back\n");
    slurm.empty().await;
}

#[tokio::test]
async fn two_slurms_run_side_by_side() {
    let (one, two) = tokio::join!(Slurm::boot(Options::default()), Slurm::boot(Options::default()));
    let (Some(one), Some(two)) = (one, two) else { return };
    let mut job = one.srun(0);
    job.args(["--job-name=mine", "/bin/cat"]);
    let job = Lines::open(job);
    until("the job runs", || one.jobs().contains("mine RUNNING")).await;
    assert_eq!(two.jobs(), "");
    drop(two);
    assert_eq!(job.ends(), Some(0));
    one.empty().await;
}

#[tokio::test]
async fn a_container_runs_static_programs_and_carries_their_bytes() {
    let Some(()) = require::podman() else { return };
    let keeper = static_keeper();
    let Some(podman) = Podman::boot(&[("agentd-keeper", &keeper)]) else { return };
    eprintln!("podman's image was ready in {:?}", podman.boot_time);
    let said = podman.run(&["run", "--rm", "-i", "--user", USER, IMAGE, "sh", "-c", "echo hello; id -un; id -u"]);
    assert_eq!(said, format!("hello\n{USER}\n{UID}\n"));
    echoes(podman.command(&["run", "--rm", "-i", IMAGE, "cat"]));
    let version = podman.run(&["run", "--rm", IMAGE, "agentd-keeper", "--version"]);
    assert_eq!(version, format!("agentd-keeper {}\n", env!("CARGO_PKG_VERSION")));
    assert_eq!(podman.containers(), [""; 0]);

    // A container outlives its client and its conmon.
    let mut open = Lines::open(podman.command(&["run", "-i", "--name", "open", IMAGE, "cat"]));
    assert_eq!(podman.containers(), ["open"]);
    let processes = podman.processes("open");
    assert!(processes.iter().any(|&pid| process::name(pid) == "cat"), "{processes:?}");
    open.0.kill().unwrap();
    open.0.wait().unwrap();
    for conmon in podman.conmons() {
        process::kill9(conmon);
        process::gone(&[conmon]).await;
    }
    let mut sleeper = podman.command(&["run", "--detach", "--name", "sleeper", IMAGE, "sleep", "1000"]);
    assert!(sleeper.stdout(Stdio::null()).status().unwrap().success());
    let processes = [processes, podman.processes("sleeper")].concat();
    for conmon in podman.conmons() {
        process::kill9(conmon);
        process::gone(&[conmon]).await;
    }
    assert!(processes.iter().any(|&pid| process::name(pid) == "sleep" && process::is_alive(pid)));
    let root = podman.root().to_owned();
    drop(podman);
    assert_gone(&root, &processes);
}

#[test]
fn the_static_keeper_needs_no_loader() {
    let Some(()) = require::podman() else { return };
    let program = fs::read(static_keeper()).unwrap();
    // elf(5): the program headers of a 64-bit file. PT_INTERP names the loader.
    let number = |at: usize, size: usize| {
        program[at..at + size].iter().rev().fold(0_usize, |number, &byte| number << 8 | usize::from(byte))
    };
    let (table, size, count) = (number(32, 8), number(54, 2), number(56, 2));
    assert!(program.starts_with(b"\x7fELF") && count > 0);
    let kinds: Vec<usize> = (0..count).map(|index| number(table + index * size, 4)).collect();
    assert!(kinds.contains(&1) && !kinds.contains(&3), "PT_LOAD and no PT_INTERP: {kinds:?}");
}

#[test]
fn an_engine_ends_with_a_test_that_panics() {
    let (tell, told) = std::sync::mpsc::channel();
    let test = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (far, slurm) =
            runtime.block_on(async { (Far::boot(Login::Root, "").await, Slurm::boot(Options::default()).await) });
        let (Some(far), Some(slurm)) = (far, slurm) else { return };
        run(far.command(DAEMON));
        let mut job = slurm.srun(0);
        job.args(["/bin/sh", "-c", &format!("PATH=/usr/bin:/bin; {DAEMON}")]);
        run(job);
        let processes = [far.machine().processes(), slurm.node("a").processes()].concat();
        tell.send((far.root().to_owned(), slurm.root().to_owned(), processes)).unwrap();
        panic!("this panic belongs to the test");
    });
    let Ok((far, slurm, processes)) = told.recv() else { return };
    assert!(test.join().is_err());
    assert!(processes.len() >= 4, "{processes:?}");
    assert_gone(&far, &processes);
    assert_gone(&slurm, &processes);
}
