# SPDX-License-Identifier: Apache-2.0
"""OCI image layouts for tests, made with the standard library (and zstd's program for one kind)."""
import gzip
import hashlib
import io
import json
import os
import platform
import subprocess
import tarfile

ARCH = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
TYPES = {"": "application/vnd.oci.image.layer.v1.tar",
         "gzip": "application/vnd.oci.image.layer.v1.tar+gzip",
         "zstd": "application/vnd.oci.image.layer.v1.tar+zstd"}
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"


def sha256(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def member(name, data=None, mode=None, link=None, symlink=None, mtime=1000, **more):
    """data: bytes of a file; None: a directory."""
    m = tarfile.TarInfo(name)
    m.mtime = mtime
    if link is not None:
        m.type, m.linkname = tarfile.LNKTYPE, link
    elif symlink is not None:
        m.type, m.linkname = tarfile.SYMTYPE, symlink
    elif data is None:
        m.type = tarfile.DIRTYPE
    else:
        m.size = len(data)
    m.mode = mode if mode is not None else 0o755 if data is None else 0o644
    for k, v in more.items():
        setattr(m, k, v)
    return m, data


def tar(*members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as t:
        for m, data in members:
            t.addfile(m, io.BytesIO(data) if data is not None else None)
    return out.getvalue()


def pack(data, how):
    if how == "gzip":
        return gzip.compress(data, mtime=0)
    if how == "zstd":
        return subprocess.run(["zstd", "-qc"], input=data, stdout=subprocess.PIPE, check=True).stdout
    return data


class Layout:
    def __init__(self, path):
        self.path = path
        os.makedirs(os.path.join(path, "blobs", "sha256"))
        with open(os.path.join(path, "oci-layout"), "w") as f:
            f.write('{"imageLayoutVersion": "1.0.0"}')
        self.entries = []

    def blob_path(self, digest):
        return os.path.join(self.path, "blobs", "sha256", digest.split(":")[1])

    def blob(self, data, media, **more):
        if isinstance(data, (dict, list)):
            data = json.dumps(data).encode()
        digest = sha256(data)
        with open(self.blob_path(digest), "wb") as f:
            f.write(data)
        return dict({"mediaType": media, "digest": digest, "size": len(data)}, **more)

    def manifest(self, layers, run=None, arch=ARCH, diff_ids=None):
        """layers: [(tar bytes, "" | "gzip" | "zstd")]; the descriptor."""
        made = [self.blob(pack(data, how), TYPES[how]) for data, how in layers]
        config = self.blob({"architecture": arch, "os": "linux", "config": run or {},
                            "rootfs": {"type": "layers",
                                       "diff_ids": diff_ids or [sha256(d) for d, _ in layers]}},
                           "application/vnd.oci.image.config.v1+json")
        return self.blob({"schemaVersion": 2, "mediaType": MANIFEST, "config": config,
                          "layers": made}, MANIFEST)

    def add(self, descriptor, tag=None, **more):
        entry = dict(descriptor, **more)
        if tag:
            entry["annotations"] = {"org.opencontainers.image.ref.name": tag}
        self.entries.append(entry)
        self.write()
        return descriptor

    def write(self):
        with open(os.path.join(self.path, "index.json"), "w") as f:
            json.dump({"schemaVersion": 2, "mediaType": INDEX, "manifests": self.entries}, f)
