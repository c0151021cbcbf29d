"""Checks the manifests below a directory: kubernetes/ and nomad/. Prints each mistake; the exit status is then 1."""

import pathlib
import sys

import hcl2
import kubernetes_validate
import yaml

VERSION = "1.37"
units = pathlib.Path(sys.argv[1])
mistakes = []


def mistake(where, text):
    mistakes.append(f"{where}: {text}")


def validate(where, document):
    """Validates a resource against the schema of Kubernetes, without unknown fields."""
    try:
        kubernetes_validate.validate(document, VERSION, strict=True)
    except kubernetes_validate.ValidationError as error:
        mistake(where, f"{'.'.join(map(str, error.path))}: {error.message}")
    except (kubernetes_validate.SchemaNotFoundError, kubernetes_validate.InvalidSchemaError) as error:
        mistake(where, error.message)


def read(path):
    documents = list(yaml.safe_load_all(path.read_text()))
    assert len(documents) == 1, path
    return documents[0]


def pod(where, metadata, spec, claims):
    """Checks what the schema leaves open: references inside the pod, and the rules of the level `restricted`."""
    given = {volume["name"] for volume in spec.get("volumes", [])} | set(claims)
    for container in spec["containers"]:
        used = {mount["name"] for mount in container["volumeMounts"]}
        for name in used ^ given:
            mistake(where, f"the volume {name} is not both declared and mounted")
        rules = container["securityContext"]
        if rules.get("allowPrivilegeEscalation") is not False or rules["capabilities"] != {"drop": ["ALL"]}:
            mistake(where, "the container keeps privileges")
        if rules.get("readOnlyRootFilesystem") is not True:
            mistake(where, "the root file system is writable")
        if not container["resources"]["limits"]["memory"]:
            mistake(where, "the container has no limit of memory")
    rules = spec["securityContext"]
    if rules.get("runAsNonRoot") is not True or rules["seccompProfile"] != {"type": "RuntimeDefault"}:
        mistake(where, "the pod runs as root, or without a seccomp profile")
    if spec["automountServiceAccountToken"] is not False:
        mistake(where, "the pod has a token")
    if not selector.items() <= metadata["labels"].items():
        mistake(where, "the network policy does not select the pod")


base = units / "kubernetes"
kustomization = read(base / "kustomization.yaml")
resources = {}
for name in kustomization["resources"]:
    resource = resources[name] = read(base / name)
    validate(name, resource)
named = {(resource["kind"], resource["metadata"]["name"]) for resource in resources.values()}
for generator in kustomization["configMapGenerator"]:
    named.add(("ConfigMap", generator["name"]))
    for name in generator["files"]:
        if not (base / name).is_file():
            mistake("kustomization.yaml", f"there is no file {name}")
selector = resources["network.yaml"]["spec"].get("podSelector", {}).get("matchLabels", {})
if not selector:
    mistake("network.yaml", "it selects no pods by their labels")

job = resources["job.yaml"]["spec"]
if job.get("backoffLimit") != 0 or not job.get("activeDeadlineSeconds"):
    mistake("job.yaml", "a failed session would run again, or a session has no deadline")
template = job["template"]
images = {image["name"] for image in kustomization["images"]}
for container in template["spec"]["containers"]:
    if container["image"] not in images:
        mistake("job.yaml", f"the image {container['image']} is not in kustomization.yaml")
pod("job.yaml", template["metadata"], template["spec"], [])

# The schema of a Sandbox is in no registry of packages. These are the fields of agents.x-k8s.io/v1beta1 in the
# project's reference; the rest of a Sandbox is a pod and claims of volumes.
sandbox = read(base / "sandbox.yaml")
FIELDS = {
    "operatingMode": ("Running", "Suspended"),
    "podTemplate": dict,
    "service": bool,
    "shutdownPolicy": ("Delete", "Retain"),
    "shutdownTime": str,
    "volumeClaimTemplates": list,
}
if (sandbox["apiVersion"], sandbox["kind"]) != ("agents.x-k8s.io/v1beta1", "Sandbox"):
    mistake("sandbox.yaml", "it is no Sandbox of v1beta1")
for key, value in sandbox["spec"].items():
    form = FIELDS.get(key)
    if form is None or not (value in form if isinstance(form, tuple) else isinstance(value, form)):
        mistake("sandbox.yaml", f"spec.{key}: {value!r} is not valid")
template = sandbox["spec"]["podTemplate"]
if template.keys() - {"metadata", "spec"} or template["metadata"].keys() - {"labels", "annotations"}:
    mistake("sandbox.yaml", "spec.podTemplate has an unknown field")
validate("sandbox.yaml", {"apiVersion": "v1", "kind": "Pod", **template})
claims = []
for claim in sandbox["spec"].get("volumeClaimTemplates", []):
    claims.append(claim["metadata"]["name"])
    validate("sandbox.yaml", {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **claim})
pod("sandbox.yaml", template["metadata"], template["spec"], claims)

# Every resource that a pod names is in the base, except the Secret, which holds a key.
for where, spec in (("job.yaml", job["template"]["spec"]), ("sandbox.yaml", template["spec"])):
    wanted = {("ServiceAccount", spec["serviceAccountName"])}
    for volume in spec["volumes"]:
        if "persistentVolumeClaim" in volume:
            wanted.add(("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]))
        if "configMap" in volume:
            wanted.add(("ConfigMap", volume["configMap"]["name"]))
    for kind, name in sorted(wanted - named):
        mistake(where, f"there is no {kind} {name}")

nomad = units / "nomad" / "agentd.nomad.hcl"
try:
    parsed = hcl2.loads(nomad.read_text())
    jobs = [job for block in parsed["job"] for job in block.values()]
    if [job["type"] for job in jobs] != ['"batch"']:
        mistake(nomad.name, "it is not one batch job")
except Exception as error:  # the parser has many kinds of errors
    mistake(nomad.name, f"it does not parse: {error}")

for text in mistakes:
    print(text, file=sys.stderr)
if mistakes:
    sys.exit(1)
print(f"{len(resources)} resources and a Sandbox fit the schemas of Kubernetes {VERSION}, and the job of Nomad parses")
