#!/usr/bin/env python3
"""Packs a directory as a container image: image.py ROOT ARCHITECTURE VERSION ARCHIVE. Called by `.ci/image`.

The archive is an OCI image layout (https://github.com/opencontainers/image-spec) with the index of `docker save` beside
it. Uses only the standard library.
"""

import hashlib
import io
import json
import pathlib
import sys
import tarfile

root, architecture, version, archive = pathlib.Path(sys.argv[1]), *sys.argv[2:4], pathlib.Path(sys.argv[4])
USER = 65532
NAME = f"localhost/agentd:{version}"
# Directories and files besides the programs: mode, owner, and the content of a file.
FURTHER = {
    "etc": (0o755, 0, None),
    "etc/agentd": (0o755, 0, None),
    "etc/group": (0o644, 0, f"root:x:0:\nagentd:x:{USER}:\n"),
    "etc/passwd": (0o644, 0, f"root:x:0:0:root:/:/sbin/nologin\nagentd:x:{USER}:{USER}::/home/agentd:/sbin/nologin\n"),
    "home": (0o755, 0, None),
    "home/agentd": (0o700, USER, None),
    "run": (0o755, 0, None),
    "state": (0o700, USER, None),
    "tmp": (0o1777, 0, None),
}


def entry(name, mode, owner=0, size=None):
    """Returns a header without anything that differs between two runs."""
    info = tarfile.TarInfo(name)
    info.mode, info.uid, info.gid, info.mtime = mode, owner, owner, 0
    info.type, info.size = (tarfile.DIRTYPE, 0) if size is None else (tarfile.REGTYPE, size)
    return info


def layer():
    """Writes the file system as one layer."""
    entries = {name: (entry(name, mode, owner, None if text is None else len(text)), text and text.encode())
               for name, (mode, owner, text) in FURTHER.items()}
    for path in root.rglob("*"):
        name = path.relative_to(root).as_posix()
        if path.is_dir():
            entries.setdefault(name, (entry(name, 0o755), None))
        else:
            entries[name] = (entry(name, 0o755, 0, path.stat().st_size), path)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in sorted(entries):
            info, content = entries[name]
            content = content.read_bytes() if isinstance(content, pathlib.Path) else content
            tar.addfile(info, content and io.BytesIO(content))
    return out.getvalue()


blobs = {}


def blob(content, kind):
    """Adds a blob, and returns its descriptor."""
    if not isinstance(content, bytes):
        content = json.dumps(content, sort_keys=True).encode()
    digest = hashlib.sha256(content).hexdigest()
    blobs[f"blobs/sha256/{digest}"] = content
    return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(content)}


files = blob(layer(), "layer.v1.tar")
config = blob({
    "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(architecture, architecture),
    "config": {
        "Cmd": ["serve"],
        "Entrypoint": ["/usr/local/bin/agentd"],
        "Env": ["PATH=/usr/local/bin"],
        "Labels": {
            "org.opencontainers.image.licenses": "Apache-2.0",
            "org.opencontainers.image.title": "agentd",
            "org.opencontainers.image.version": version,
        },
        "User": f"{USER}:{USER}",
    },
    "created": "1970-01-01T00:00:00Z",
    "history": [{"created": "1970-01-01T00:00:00Z", "created_by": ".ci/image"}],
    "os": "linux",
    "rootfs": {"diff_ids": [files["digest"]], "type": "layers"},
}, "config.v1+json")
manifest = blob({
    "config": config,
    "layers": [files],
    "mediaType": "application/vnd.oci.image.manifest.v1+json",
    "schemaVersion": 2,
}, "manifest.v1+json")
index = {"schemaVersion": 2, "manifests": [{**manifest, "annotations": {"org.opencontainers.image.ref.name": NAME}}]}


def place(descriptor):
    return f"blobs/{descriptor['digest'].replace(':', '/')}"


documents = {
    "index.json": index,
    "manifest.json": [{"Config": place(config), "Layers": [place(files)], "RepoTags": [NAME]}],
    "oci-layout": {"imageLayoutVersion": "1.0.0"},
}
contents = {name: json.dumps(document, sort_keys=True).encode() for name, document in documents.items()} | blobs
with tarfile.open(archive, mode="w", format=tarfile.USTAR_FORMAT) as tar:
    for directory in ("blobs", "blobs/sha256"):
        tar.addfile(entry(directory, 0o755))
    for name in sorted(contents):
        tar.addfile(entry(name, 0o644, 0, len(contents[name])), io.BytesIO(contents[name]))
print(archive)
print(manifest["digest"])
