//! Command lines of an agent that stays on its place when the connection is lost.
//!
//! ```text
//! submit   gives the agent's parent to the engine, once         slurm, container, kubernetes
//! client   connects with it, after each lost connection         all kinds; over ssh, it starts the parent too
//! ```

use std::time::Duration;

use crate::{ClientError, LaunchNames, Place, PlaceKind, command, container};

/// Times of an agent that stays on its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResidentTimes {
    /// Time after which an agent without a connection is ended.
    pub unattended: Duration,
    /// Time for which the end of an agent waits to be read.
    pub linger: Duration,
}

/// Command lines of a launch that stays on its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResidentLines {
    /// Gives the agent's parent to the engine. The first word of its output is the engine's job.
    pub submit: Option<Vec<String>>,
    /// Connects with the agent's parent. The engine's job replaces `{job}`.
    pub client: Vec<String>,
}

impl Place {
    /// Builds the command lines of a launch that stays on the place.
    ///
    /// # Errors
    ///
    /// A file of the launch is missing or invalid, or the directory cannot be an argument.
    pub fn resident_lines(&self, launch: &LaunchNames<'_>) -> Result<ResidentLines, ClientError> {
        let (name, keeper) = (launch.name(), self.keeper.as_str());
        Ok(match &self.kind {
            PlaceKind::Slurm(slurm) => {
                ResidentLines { submit: Some(slurm.submit(keeper, launch)), client: slurm.attach(keeper, &name) }
            }
            PlaceKind::Ssh(ssh) => {
                let client = ssh.start(keeper, self.silence, launch.keeper, &format!("attach {name} start"))?;
                ResidentLines { submit: None, client }
            }
            PlaceKind::Container(container) => ResidentLines {
                submit: Some(container.run(keeper, launch, container::Run::Stay)),
                client: container.attach(keeper, &name),
            },
            PlaceKind::Kubernetes(kubernetes) => ResidentLines {
                submit: Some(kubernetes.submit(keeper, launch)?),
                client: kubernetes.attach(keeper, &name),
            },
            PlaceKind::Command(own) => ResidentLines {
                submit: command::optional(&own.submit, launch, keeper)?,
                client: command::replaced(&own.client, launch, keeper)?,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::launch_1;
    use crate::place::tests::place;
    use crate::{CommandPlace, Container, Kubernetes, Pod, Slurm, Ssh, words};

    fn lines(kind: PlaceKind) -> (Option<String>, String) {
        let ResidentLines { submit, client } = place(kind).resident_lines(&launch_1()).unwrap();
        (submit.map(|words| words.join(" ")), client.join(" "))
    }

    #[test]
    fn a_job_runs_the_parent_and_a_second_step_attaches() {
        let slurm = Slurm { partition: Some("all".to_owned()), cores: Some(2), ..Slurm::default() };
        let (submit, client) = lines(PlaceKind::Slurm(slurm));
        assert_eq!(
            submit.unwrap(),
            "sbatch --job-name=agentd-k1-x-3 --nodes=1 --ntasks=1 --chdir=/ --parsable --no-requeue \
             --export=PATH=/usr/local/bin:/usr/bin:/bin --partition=all --cpus-per-task=2 \
             --output=/dev/null --error=/dev/null --wrap=exec 'agentd-keeper' enter stay agentd-k1-x-3"
        );
        assert_eq!(
            client,
            "srun --jobid={job} --overlap --quiet --nodes=1 --ntasks=1 --chdir=/ --mpi=none \
             --export=PATH=/usr/local/bin:/usr/bin:/bin agentd-keeper enter attach agentd-k1-x-3"
        );
    }

    #[test]
    fn over_ssh_the_client_starts_the_parent_and_other_lines_list_and_end_it() {
        let ssh = PlaceKind::Ssh(Ssh { host: "farm".to_owned(), ..Ssh::default() });
        let (submit, client) = lines(ssh.clone());
        assert!(submit.is_none() && client.ends_with("-- farm exec agentd-keeper enter attach agentd-k1-x-3 start"));
        let stays = ResidentTimes { unattended: Duration::from_secs(1), linger: Duration::ZERO };
        let place = Place { resident: Some(stays), ..place(ssh) };
        let end = place.cancel(&launch_1()).unwrap().unwrap().join(" ");
        assert!(end.ends_with("-- farm exec agentd-keeper enter end agentd-k1-x-3"), "{end}");
        assert!(place.status().unwrap().join(" ").ends_with("exec agentd-keeper enter list"));
        let states = place.parse_status("Welcome\nagentd-k1-x-3 running\n").unwrap();
        assert_eq!(states[0].name, "agentd-k1-x-3");
    }

    #[test]
    fn a_container_and_a_pod_run_the_parent_without_a_client() {
        let container = Container { image: "eda".to_owned(), engine: "podman".to_owned(), ..Container::default() };
        let (submit, client) = lines(PlaceKind::Container(container));
        let submit = submit.unwrap();
        assert!(submit.starts_with("podman run --rm --detach ") && submit.ends_with(" eda enter stay agentd-k1-x-3"));
        assert!(!submit.contains("--interactive"), "{submit}");
        assert_eq!(client, "podman exec --interactive agentd-k1-x-3 agentd-keeper enter attach agentd-k1-x-3");
        let pod = Kubernetes {
            namespace: None,
            context: None,
            pod: Pod::Image("eda".to_owned()),
            memory: None,
            cores: None,
            options: Vec::new(),
        };
        let (submit, client) = lines(PlaceKind::Kubernetes(pod));
        let submit = submit.unwrap();
        assert!(submit.contains("\"command\":[\"agentd-keeper\",\"enter\",\"stay\",\"agentd-k1-x-3\"]"), "{submit}");
        assert!(!submit.contains("stdin"), "{submit}");
        assert_eq!(
            client,
            "kubectl exec --stdin agentd-k1-x-3 --container=agentd-k1-x-3 -- agentd-keeper enter attach agentd-k1-x-3"
        );
    }

    #[test]
    fn a_client_of_the_users_own_has_its_own_command_for_the_submission() {
        let own = CommandPlace {
            client: words(["go", "{name}", "{job}"]),
            submit: words(["put", "{name}"]),
            ..CommandPlace::default()
        };
        let expected = (Some("put agentd-k1-x-3".to_owned()), "go agentd-k1-x-3 {job}".to_owned());
        assert_eq!(lines(PlaceKind::Command(own)), expected);
    }
}
