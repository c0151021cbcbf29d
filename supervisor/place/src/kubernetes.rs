//! Pods of Kubernetes: `kubectl run` creates the pod, waits for it and carries its stdio.
//!
//! The pod is given as the overrides of `kubectl run`, which are on its command line and contain no secret. Its first
//! container runs `agentd-keeper enter`. `stdinOnce` ends the stdin of the container when the client ends.

use std::path::PathBuf;

use agentd_api::event::PlaceState;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::state::{EngineState, some};
use crate::{ClientError, ENTER, LaunchNames, words};

/// Settings of a place of pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kubernetes {
    /// Namespace of the pods.
    pub namespace: Option<String>,
    /// Context of kubectl's configuration.
    pub context: Option<String>,
    /// The pod.
    pub pod: Pod,
    /// Memory limit in bytes.
    pub memory: Option<u64>,
    /// Number of processor cores.
    pub cores: Option<u32>,
    /// Further arguments of `kubectl run`.
    pub options: Vec<String>,
}

/// The pod of a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pod {
    /// A pod with one container of this image.
    Image(String),
    /// A file with the manifest of a pod, in YAML or JSON.
    Template(PathBuf),
}

/// Program of the client.
pub(crate) const PROGRAM: &str = "kubectl";
/// Label of all pods that agentd creates.
const MANAGED: (&str, &str) = ("app.kubernetes.io/managed-by", "agentd");
/// Label with the session of a pod.
const SESSION: &str = "agentd.dev/session";
/// Label with the number of the launch.
const LAUNCH: &str = "agentd.dev/launch";
/// Time that a pod may wait for a node: a year.
const WAIT: &str = "--pod-running-timeout=8760h";

impl Kubernetes {
    /// Returns the namespace and the context.
    pub(crate) fn target(&self) -> String {
        let parts: Vec<&str> = self.context.iter().chain(&self.namespace).map(String::as_str).collect();
        if !parts.is_empty() {
            return parts.join("/");
        }
        match &self.pod {
            Pod::Image(image) => image.clone(),
            Pod::Template(path) => path.display().to_string(),
        }
    }

    fn kubectl(&self, arguments: &[&str]) -> Vec<String> {
        let mut command = words([PROGRAM]);
        command.extend(self.context.iter().map(|context| format!("--context={context}")));
        command.extend(self.namespace.iter().map(|namespace| format!("--namespace={namespace}")));
        command.extend(arguments.iter().map(|&argument| argument.to_owned()));
        command
    }

    pub(crate) fn client(&self, keeper: &str, launch: &LaunchNames<'_>) -> Result<Vec<String>, ClientError> {
        let mut pod = self.pod(keeper, launch, &[ENTER])?;
        let container = &mut pod["spec"]["containers"][0];
        container["stdin"] = true.into();
        container["stdinOnce"] = true.into();
        let image = pod["spec"]["containers"][0]["image"].as_str().unwrap_or_default().to_owned();
        let mut client = self.kubectl(&["run", &launch.name(), "--attach", "--stdin", "--rm", "--quiet"]);
        client.extend(words(["--restart=Never", WAIT]));
        client.push(format!("--image={image}"));
        client.extend(self.options.iter().cloned());
        client.push(format!("--overrides={pod}"));
        Ok(client)
    }

    /// Builds the command line that creates the pod of an agent that stays.
    pub(crate) fn submit(&self, keeper: &str, launch: &LaunchNames<'_>) -> Result<Vec<String>, ClientError> {
        let name = launch.name();
        let pod = self.pod(keeper, launch, &[ENTER, "stay", &name])?;
        let image = pod["spec"]["containers"][0]["image"].as_str().unwrap_or_default().to_owned();
        let mut submit = self.kubectl(&["run", &name, "--restart=Never"]);
        submit.push(format!("--image={image}"));
        submit.extend(self.options.iter().cloned());
        submit.push(format!("--overrides={pod}"));
        Ok(submit)
    }

    /// Builds the command line that connects with the parent of an agent that stays.
    pub(crate) fn attach(&self, keeper: &str, name: &str) -> Vec<String> {
        let container = format!("--container={name}");
        self.kubectl(&["exec", "--stdin", name, &container, "--", keeper, ENTER, "attach", name])
    }

    /// Builds the pod: the template or a pod of the image, with the container, labels and limits of the launch.
    fn pod(&self, keeper: &str, launch: &LaunchNames<'_>, role: &[&str]) -> Result<Value, ClientError> {
        let mut pod = match &self.pod {
            Pod::Image(image) => json!({ "spec": {
                "automountServiceAccountToken": false,
                "enableServiceLinks": false,
                "containers": [{ "image": image }],
            }}),
            Pod::Template(path) => {
                let text = launch.template.ok_or_else(|| ClientError::NoTemplate(path.clone()))?;
                let invalid = |detail: String| ClientError::Template { path: path.clone(), detail };
                template(text).map_err(invalid)?
            }
        };
        let name = launch.name();
        pod["apiVersion"] = "v1".into();
        let Some(metadata) = object(&mut pod, "metadata") else { return Ok(pod) };
        // kubectl has the name and the namespace as arguments.
        metadata.remove("name");
        metadata.remove("namespace");
        if let Some(labels) = metadata.entry("labels").or_insert_with(|| json!({})).as_object_mut() {
            let own = [(MANAGED.0, MANAGED.1.to_owned()), (SESSION, launch.session.to_owned())];
            labels.extend(own.map(|(key, value)| (key.to_owned(), Value::from(value))));
            labels.insert(LAUNCH.to_owned(), launch.launch.to_string().into());
        }
        pod["spec"]["restartPolicy"] = "Never".into();
        let container = &mut pod["spec"]["containers"][0];
        // The states of a pod's containers have no fixed order, so its container is known by the name of the pod.
        container["name"] = name.into();
        container["command"] = [keeper].iter().chain(role).copied().collect();
        if let Some(container) = container.as_object_mut() {
            for key in ["args", "tty", "stdin", "stdinOnce"] {
                container.remove(key);
            }
        }
        let limits = [
            ("memory", self.memory.map(|bytes| bytes.to_string())),
            ("cpu", self.cores.map(|cores| cores.to_string())),
        ];
        for (key, limit) in limits {
            if let Some(limit) = limit {
                pod["spec"]["containers"][0]["resources"]["limits"][key] = limit.into();
            }
        }
        Ok(pod)
    }

    /// Deletes the pod and does not wait for its end. A pod that does not exist is no error.
    pub(crate) fn delete(&self, launch: &LaunchNames<'_>) -> Vec<String> {
        self.kubectl(&["delete", "pod", &launch.name(), "--ignore-not-found", "--wait=false"])
    }

    pub(crate) fn status(&self) -> Vec<String> {
        let selector = format!("--selector={}={}", MANAGED.0, MANAGED.1);
        self.kubectl(&["get", "pods", &selector, "--output=json"])
    }

    pub(crate) fn get(&self, launch: &LaunchNames<'_>) -> Vec<String> {
        self.kubectl(&["get", "pod", &launch.name(), "--output=json", "--ignore-not-found"])
    }
}

/// Parses the manifest of a pod, and checks the parts that agentd changes.
fn template(text: &str) -> Result<Value, String> {
    let pod: Value = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
    if pod["kind"].as_str() != Some("Pod") {
        return Err("its kind is not Pod".to_owned());
    }
    let containers = pod["spec"]["containers"].as_array();
    match containers.and_then(|containers| containers.first()) {
        Some(Value::Object(container)) if container.get("image").is_some_and(Value::is_string) => {}
        _ => return Err("its first container has no image".to_owned()),
    }
    let is_object = |value: &Value| value.is_null() || value.is_object();
    let resources = &pod["spec"]["containers"][0]["resources"];
    let parts = [&pod["metadata"], &pod["metadata"]["labels"], resources, &resources["limits"]];
    if parts.into_iter().all(is_object) { Ok(pod) } else { Err("its metadata or resources are no mappings".to_owned()) }
}

/// Returns the object below this key, and makes it if it is missing.
fn object<'a>(value: &'a mut Value, key: &str) -> Option<&'a mut Map<String, Value>> {
    if value[key].is_null() {
        value[key] = json!({});
    }
    value[key].as_object_mut()
}

/// Parses the output of `kubectl get pods`.
pub(crate) fn parse_status(output: &str) -> Result<Vec<EngineState>, String> {
    let list: Value =
        serde_json::from_str(output).map_err(|error| format!("kubectl's list of pods is no JSON: {error}"))?;
    let pods = list["items"].as_array().ok_or("kubectl's list of pods has no items")?;
    Ok(pods.iter().filter_map(described).collect())
}

/// Parses the output of `kubectl get pod NAME`.
pub(crate) fn parse_ended(output: &str) -> Option<EngineState> {
    described(&serde_json::from_str(output).ok()?)
}

/// Reasons of a pod's end that lie in the cluster.
const OF_CLUSTER: [&str; 6] = ["Evicted", "NodeLost", "NodeShutdown", "Preempting", "Shutdown", "Terminated"];

fn described(pod: &Value) -> Option<EngineState> {
    let (metadata, status) = (&pod["metadata"], &pod["status"]);
    let facts = EngineState {
        job: metadata["uid"].as_str().and_then(some),
        host: pod["spec"]["nodeName"].as_str().and_then(some),
        ..EngineState::named(metadata["name"].as_str()?)
    };
    let text = |value: &Value| value.as_str().and_then(some);
    let phase = status["phase"].as_str()?;
    let containers = status["containerStatuses"].as_array().into_iter().flatten();
    let own = containers.into_iter().find(|container| container["name"] == metadata["name"]);
    let container = own.map_or(&Value::Null, |container| &container["state"]);
    let is_over = matches!(phase, "Succeeded" | "Failed");
    if !is_over && !metadata["deletionTimestamp"].is_null() {
        let ends = metadata["deletionTimestamp"].as_str().and_then(|text| text.parse::<Timestamp>().ok());
        let message = Some("the pod is being deleted".to_owned());
        return Some(EngineState {
            state: Some(PlaceState::Ending),
            reason: text(&status["reason"]),
            message,
            ends,
            ..facts
        });
    }
    Some(match phase {
        "Pending" => {
            let scheduled = condition(status, "PodScheduled");
            if let Some(condition) = scheduled.filter(|condition| condition["status"] == "False") {
                let (reason, message) = (text(&condition["reason"]), text(&condition["message"]));
                EngineState { state: Some(PlaceState::Queued), reason, message, ..facts }
            } else {
                let waiting = &container["waiting"];
                let (reason, message) = (text(&waiting["reason"]), text(&waiting["message"]));
                EngineState { state: Some(PlaceState::Starting), reason, message, ..facts }
            }
        }
        "Running" => EngineState { state: Some(PlaceState::Running), ..facts },
        "Succeeded" | "Failed" => ended(facts, status, &container["terminated"]),
        other => facts.unknown(other),
    })
}

fn condition<'a>(status: &'a Value, kind: &str) -> Option<&'a Value> {
    status["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind)
}

fn ended(facts: EngineState, status: &Value, terminated: &Value) -> EngineState {
    let text = |value: &Value| value.as_str().and_then(some);
    let disrupted = condition(status, "DisruptionTarget").filter(|condition| condition["status"] == "True");
    let of_pod = text(&status["reason"]);
    let of_container = text(&terminated["reason"]);
    let is_of_engine = disrupted.is_some() || of_pod.as_deref().is_some_and(|reason| OF_CLUSTER.contains(&reason));
    let is_of_program = of_pod.is_none()
        && disrupted.is_none()
        && of_container.as_deref().is_some_and(|reason| matches!(reason, "Completed" | "Error"));
    let reason = of_pod.or(disrupted.and_then(|condition| text(&condition["reason"]))).or(of_container);
    let detail = text(&status["message"])
        .or(disrupted.and_then(|condition| text(&condition["message"])))
        .or(text(&terminated["message"]));
    let message = match (detail, terminated["exitCode"].as_i64()) {
        _ if reason.as_deref() == Some("OOMKilled") => "the container reached its memory limit".to_owned(),
        (Some(detail), _) => detail,
        (None, Some(code)) => format!("the container ended with exit code {code}"),
        (None, None) => "the pod has ended".to_owned(),
    };
    EngineState { state: Some(PlaceState::Ended), reason, message: Some(message), is_of_engine, is_of_program, ..facts }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::launch_1;

    fn image() -> Kubernetes {
        Kubernetes {
            namespace: None,
            context: None,
            pod: Pod::Image("registry.example/eda:1".to_owned()),
            memory: None,
            cores: None,
            options: Vec::new(),
        }
    }

    fn overrides(client: &[String]) -> Value {
        let word = client.iter().find_map(|word| word.strip_prefix("--overrides=")).unwrap();
        serde_json::from_str(word).unwrap()
    }

    #[test]
    fn a_client_creates_a_pod_that_runs_the_keeper_on_its_stdin() {
        let place = Kubernetes {
            namespace: Some("agents".to_owned()),
            context: Some("farm".to_owned()),
            memory: Some(1 << 30),
            cores: Some(2),
            options: words(["--image-pull-policy=Always"]),
            ..image()
        };
        let client = place.client("/bin/agentd-keeper", &launch_1()).unwrap();
        let expected = "kubectl --context=farm --namespace=agents run agentd-k1-x-3 --attach --stdin --rm --quiet \
                        --restart=Never --pod-running-timeout=8760h --image=registry.example/eda:1 \
                        --image-pull-policy=Always";
        assert_eq!(client[..client.len() - 1].join(" "), expected);
        let labels = json!({
            "app.kubernetes.io/managed-by": "agentd", "agentd.dev/session": "k1-x", "agentd.dev/launch": "3",
        });
        let pod = json!({
            "apiVersion": "v1",
            "metadata": { "labels": labels },
            "spec": {
                "automountServiceAccountToken": false,
                "enableServiceLinks": false,
                "restartPolicy": "Never",
                "containers": [{
                    "name": "agentd-k1-x-3",
                    "image": "registry.example/eda:1",
                    "command": ["/bin/agentd-keeper", "enter"],
                    "stdin": true,
                    "stdinOnce": true,
                    "resources": { "limits": { "memory": "1073741824", "cpu": "2" } },
                }],
            },
        });
        assert_eq!(overrides(&client), pod);
        let delete = place.delete(&launch_1()).join(" ");
        assert_eq!(
            delete,
            "kubectl --context=farm --namespace=agents delete pod agentd-k1-x-3 --ignore-not-found --wait=false"
        );
    }

    #[test]
    fn a_template_keeps_its_volumes_and_loses_its_command() {
        let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: x, namespace: y, labels: {team: rtl}}\nspec:\n  \
            activeDeadlineSeconds: 60\n  containers:\n  - name: agent\n    image: registry.example/a:1\n    \
            command: [/bin/sh]\n    args: [-c, x]\n    tty: true\n    resources: {limits: {memory: 4Gi}}\n    \
            volumeMounts: [{name: work, mountPath: /work}]\n  volumes: [{name: work, emptyDir: {}}]\n";
        let place = Kubernetes { pod: Pod::Template("/pod.yaml".into()), cores: Some(1), ..image() };
        let launch = LaunchNames { template: Some(text), ..launch_1() };
        let client = place.client("agentd-keeper", &launch).unwrap();
        assert!(client.contains(&"--image=registry.example/a:1".to_owned()), "{client:?}");
        let pod = overrides(&client);
        assert_eq!(pod["metadata"]["labels"]["team"], "rtl");
        assert_eq!((&pod["metadata"]["name"], &pod["metadata"]["namespace"]), (&Value::Null, &Value::Null));
        let container = &pod["spec"]["containers"][0];
        assert_eq!(container["command"], json!(["agentd-keeper", "enter"]));
        assert_eq!((&container["args"], &container["tty"]), (&Value::Null, &Value::Null));
        assert_eq!(container["resources"]["limits"], json!({ "memory": "4Gi", "cpu": "1" }));
        assert_eq!(container["volumeMounts"][0]["mountPath"], "/work");
        assert_eq!(pod["spec"]["activeDeadlineSeconds"], 60);
    }

    #[test]
    fn a_template_that_is_no_pod_is_refused() {
        let place = Kubernetes { pod: Pod::Template("/pod.yaml".into()), ..image() };
        assert_eq!(place.client("k", &launch_1()), Err(ClientError::NoTemplate("/pod.yaml".into())));
        for (text, expected) in [
            ("kind: Job\n", "its kind is not Pod"),
            ("kind: Pod\nspec: {containers: []}\n", "its first container has no image"),
            ("kind: Pod\nspec: {containers: [{name: a}]}\n", "its first container has no image"),
            ("kind: Pod\nmetadata: [a]\nspec: {containers: [{image: a}]}\n", "no mappings"),
            ("a: [\n", ""),
            ("text", "its kind is not Pod"),
        ] {
            let launch = LaunchNames { template: Some(text), ..launch_1() };
            let error = place.client("k", &launch).unwrap_err().to_string();
            assert!(error.starts_with("the template \"/pod.yaml\" is no pod: ") && error.contains(expected), "{error}");
        }
    }

    fn state(status: &Value) -> EngineState {
        let pod = json!({ "metadata": { "name": "agentd-a-1", "uid": "u" }, "spec": {}, "status": status });
        parse_status(&json!({ "items": [pod] }).to_string()).unwrap().remove(0)
    }

    #[test]
    fn the_phase_and_its_conditions_give_the_state() {
        let unschedulable = json!({ "phase": "Pending", "conditions": [
            { "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes" },
        ]});
        let pull = json!({ "phase": "Pending", "conditions": [{ "type": "PodScheduled", "status": "True" }],
            "containerStatuses": [{
                "name": "agentd-a-1",
                "state": { "waiting": { "reason": "ImagePullBackOff", "message": "no image" } },
            }],
        });
        let memory = json!({ "phase": "Failed", "containerStatuses": [
            { "name": "proxy", "state": { "terminated": { "reason": "Completed", "exitCode": 0 } } },
            { "name": "agentd-a-1", "state": { "terminated": { "reason": "OOMKilled", "exitCode": 137 } } },
        ]});
        let evicted = json!({ "phase": "Failed", "reason": "Evicted", "message": "the node was low on memory" });
        let preempted = json!({ "phase": "Failed", "conditions": [
            { "type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "preempted" },
        ]});
        let done = json!({ "phase": "Succeeded", "containerStatuses": [
            { "name": "agentd-a-1", "state": { "terminated": { "reason": "Completed", "exitCode": 0 } } },
        ]});
        for (status, expected) in [
            (unschedulable, ("queued", "Unschedulable", "0/3 nodes", false)),
            (pull, ("starting", "ImagePullBackOff", "no image", false)),
            (json!({ "phase": "Running" }), ("running", "-", "-", false)),
            (memory, ("ended", "OOMKilled", "the container reached its memory limit", false)),
            (evicted, ("ended", "Evicted", "the node was low on memory", true)),
            (preempted, ("ended", "PreemptionByScheduler", "preempted", true)),
            (done, ("ended", "Completed", "the container ended with exit code 0", false)),
            (json!({ "phase": "Unknown" }), ("-", "-", "the engine reports the state \"Unknown\"", false)),
        ] {
            let state = state(&status);
            let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
            let word = state.state.map_or("-", PlaceState::as_str);
            let found = (word, &*text(&state.reason), &*text(&state.message), state.is_of_engine);
            assert_eq!(found, expected, "{status}");
        }
    }

    #[test]
    fn a_pod_that_is_being_deleted_ends() {
        let pod = json!({
            "metadata": { "name": "agentd-a-1", "deletionTimestamp": "2026-11-30T20:00:00Z" },
            "status": { "phase": "Running" },
        });
        let state = parse_ended(&pod.to_string()).unwrap();
        assert_eq!((state.state, state.ends.is_some()), (Some(PlaceState::Ending), true));
        assert_eq!(parse_ended(""), None);
        assert!(parse_status("The connection was refused").is_err());
    }
}
