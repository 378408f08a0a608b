"""Who is who in the cluster: one authority, a certificate for each part, and their kubeconfigs."""

import ipaddress
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tests.cluster.network import API_SERVER, API_SERVICE, NODE_ADDRESS, NODE_NAME

_DAYS = 30
_API_NAMES = (
    "kubernetes", "kubernetes.default", "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local", "127.0.0.1", NODE_ADDRESS, API_SERVICE,
)  # fmt: skip


class Part(NamedTuple):
    """A holder of a certificate."""

    file: str
    name: str
    group: str | None = None
    answers_as: tuple[str, ...] = ()
    """Names and addresses that it serves under."""


PARTS = (
    Part("apiserver", "kube-apiserver", answers_as=_API_NAMES),
    Part("apiserver-kubelet-client", "kube-apiserver-kubelet-client", "system:masters"),
    Part(
        "kubelet", f"system:node:{NODE_NAME}", "system:nodes", answers_as=(NODE_NAME, NODE_ADDRESS)
    ),
    Part("admin", "admin", "system:masters"),
    Part("controller-manager", "system:kube-controller-manager"),
    Part("scheduler", "system:kube-scheduler"),
    Part("proxy", "system:kube-proxy"),
    Part("dns", "espalier:dns"),
)
WITH_KUBECONFIG = ("kubelet", "admin", "controller-manager", "scheduler", "proxy", "dns")


def issue(folder):
    """Write the authority, every part's key and certificate, and the kubeconfigs."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("espalier-test-cluster")
    authority = (
        _certificate(name, name, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "ca.crt").write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    for part in PARTS:
        _issue_one(folder, part, name, key)
    # service account tokens are signed with RSA, as every Kubernetes does by default
    signing = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    _write_key(folder / "service-accounts.key", signing)
    (folder / "service-accounts.pub").write_bytes(
        signing.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    for part in WITH_KUBECONFIG:
        (folder / f"{part}.kubeconfig").write_text(yaml.safe_dump(_kubeconfig(folder, part)))


def _issue_one(folder, part, issuer, authority_key):
    key = ec.generate_private_key(ec.SECP256R1())
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
    certificate = _certificate(
        _name(part.name, part.group), issuer, key.public_key()
    ).add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    if part.answers_as:
        names = x509.SubjectAlternativeName([_alternative(name) for name in part.answers_as])
        certificate = certificate.add_extension(names, critical=False)
    signed = certificate.sign(authority_key, hashes.SHA256())
    (folder / f"{part.file}.crt").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    _write_key(folder / f"{part.file}.key", key)


def _certificate(subject, issuer, public_key):
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=_DAYS))
    )


def _name(common, organisation=None):
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, common)]
    if organisation:
        attributes.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, organisation))
    return x509.Name(attributes)


def _alternative(name):
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _write_key(path, key):
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )


def _kubeconfig(folder, part):
    cluster = {"server": API_SERVER, "certificate-authority": str(folder / "ca.crt")}
    user = {
        "client-certificate": str(folder / f"{part}.crt"),
        "client-key": str(folder / f"{part}.key"),
    }
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "espalier", "cluster": cluster}],
        "users": [{"name": part, "user": user}],
        "contexts": [{"name": "espalier", "context": {"cluster": "espalier", "user": part}}],
        "current-context": "espalier",
    }
