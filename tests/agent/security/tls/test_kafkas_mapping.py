"""Subjects and mapping rules, compared with Java's X500Principal and Kafka's SslPrincipalMapper."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from agent.security.tls.distinguished_name import subject_of
from agent.security.tls.principal_mapping import NoMatchingRuleError, PrincipalMapper
from tests.fixtures import kafka_tools
from tests.fixtures.certificates import Authority

if TYPE_CHECKING:
    from cryptography.x509.oid import ObjectIdentifier

_SOURCE: Final = Path(__file__).parent / "Principals.java"
_CN, _OU, _O = NameOID.COMMON_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME, NameOID.ORGANIZATION_NAME
_SUBJECTS: Final[tuple[tuple[tuple[ObjectIdentifier, str], ...], ...]] = (
    ((NameOID.COUNTRY_NAME, "DE"), (_O, "Quarry"), (_OU, "Cutters"), (_CN, "Duke")),
    ((_CN, 'Tkac, Adam+"x" <y>;#=\\'), (_O, "a")),
    ((_CN, " #edges  "),),
    ((_CN, "Jürgen 石"), (NameOID.LOCALITY_NAME, "Köln"), (NameOID.STATE_OR_PROVINCE_NAME, "NW")),
    ((NameOID.DOMAIN_COMPONENT, "org"), (NameOID.USER_ID, "42"), (NameOID.STREET_ADDRESS, "1 Way")),
    ((NameOID.EMAIL_ADDRESS, "a@b.example"), (NameOID.SERIAL_NUMBER, "7"), (_CN, "x"), (NameOID.TITLE, "T")),
    ((_CN, "a\nb\tc"),),
    (),
)
_RULES: Final = (
    "DEFAULT",
    "RULE:^CN=(.*?),OU=(.*?),O=(.*?)(,.*)?$/$1@$2/L, RULE:^.*CN=([^,]*).*$/$1/U",
    r"RULE:^CN=((\\.|[^,\\])*)(,.*|$)/$1/,DEFAULT",
    "RULE:.*/x/",
    "RULE:([A-Z]*)=(.*)/$2$12$3-\\$/L",
    "RULE:.*?(u.*)/$0$1/,RULE:^$/empty/",
    ",, RULE:(.)(.*)/$2\\/$1/ ,,",
)


def test_certificates_have_the_names_that_kafka_gives_them(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    arguments, own = [], []
    for number, attributes in enumerate(_SUBJECTS):
        subject = x509.Name([x509.NameAttribute(kind, value) for kind, value in attributes])
        issued = authority.issue(f"client-{number}", subject=subject)
        certificate = x509.load_pem_x509_certificate(issued.certificate.read_bytes())
        text = subject_of(certificate.public_bytes(Encoding.DER))
        for rules in _RULES:
            arguments += [str(issued.certificate), rules]
            own.append([text, _name(rules, text)])
    output = kafka_tools.run(str(_SOURCE), *arguments)
    assert own == [json.loads(line) for line in output.splitlines() if line.startswith("[")]


def _name(rules: str, subject: str) -> str | None:
    try:
        return PrincipalMapper(rules).name_of(subject)
    except NoMatchingRuleError:
        return None
