//! Keys by openssl, their enrolment, and an ESP with signed programs.

use super::auth::VariableWrite;
use super::volume::{put_enrolment, sign_programs};
use super::*;
use crate::format::fat::tests::volume;
use crate::format::fat::{Directory, FatEntry, Piece, Volume, read, write};
use orlop_config::boot_trust::{BootCertificate, FirmwareTrust, VARIABLE_DB, VARIABLE_SECURE_BOOT};
use orlop_config::release::UtcSecond;
use ring::signature::{RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const MIB: u64 = 1 << 20;
/// Time, and header of the signature, in front of the signature.
const BEFORE_SIGNATURE: usize = 40;

fn keys(dir: &Path) -> SecureBootKeys {
    SecureBootKeys::create(&dir.join("keys")).expect("openssl makes keys")
}

/// `RSAPublicKey` in a certificate of openssl, whose modulus has 2048 bits and exponent 65537.
fn public_key(certificate: &[u8]) -> &[u8] {
    let begins = [0x30, 0x82, 0x01, 0x0a, 0x02, 0x82, 0x01, 0x01];
    let at = certificate.windows(begins.len()).position(|bytes| bytes == begins).expect("an RSA key");
    &certificate[at..at + 270]
}

#[test]
fn keys_are_made_once_and_are_private() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let keys = keys(dir.path());
    for name in ["PK.pem", "KEK.pem", "db.pem"] {
        let mode = fs::metadata(keys.path().join(name)).expect(name).permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    let name = keys.certificate().expect("readable").name();
    assert!(name.starts_with("Orlop db ") && name.len() == 17, "{name}");
    let digest = keys.digest().expect("readable");
    let refused = SecureBootKeys::create(keys.path()).expect_err("twice").to_string();
    assert!(refused.contains("has keys already"), "{refused}");
    assert_eq!(keys.digest().expect("readable"), digest);
    assert!(!dir.path().join("keys.partial").exists());
    // Without its private key a build ends at once.
    fs::remove_file(keys.path().join("db.pem")).expect("removed");
    let scratch = dir.path().join("scratch");
    let none = BootSigner::new(dir.path(), &keys, &scratch).expect_err("no key");
    assert!(format!("{none:#}").contains("db.pem") && !scratch.exists(), "{none:#}");
    // A directory without keys says how one is made.
    let none = SecureBootKeys::new(dir.path()).certificate().expect_err("none");
    assert!(format!("{none:#}").contains("secure-boot-keys"), "{none:#}");
}

/// Each file is a write of its variable that its signer has signed, as a firmware checks it.
#[test]
fn the_enrolment_is_signed_by_the_key_above() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let keys = keys(dir.path());
    let der = |name: &str| fs::read(keys.path().join(format!("{name}.cer"))).expect(name);
    let files = keys.enrolment().expect("readable");
    let names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
    assert_eq!(names, ["PK.auth", "KEK.auth", "db.auth"]);
    for (file, (name, signer)) in files.iter().zip([("PK", "PK"), ("KEK", "PK"), ("db", "KEK")]) {
        let content = &file.content;
        let length = u32::from_le_bytes(content[16..20].try_into().expect("four bytes"));
        let list = 16 + usize::try_from(length).expect("small");
        // SignedData with two bytes of length, SHA-256: a firmware takes no other form.
        let signature = &content[BEFORE_SIGNATURE..list];
        assert_eq!((signature[0], signature[1], signature[14]), (0x30, 0x82, 0x86), "{name}");
        assert!(content[list..].ends_with(&der(name)), "{name}");
        let mut signed: Vec<u8> = name.encode_utf16().flat_map(u16::to_le_bytes).collect();
        signed.extend(if name == "db" {
            [0xcb, 0xb2, 0x19, 0xd7, 0x3a, 0x3d, 0x96, 0x45, 0xa3, 0xbc, 0xda, 0xd0, 0x0e, 0x67, 0x65, 0x6f]
        } else {
            [0x61, 0xdf, 0xe4, 0x8b, 0xca, 0x93, 0xd2, 0x11, 0xaa, 0x0d, 0x00, 0xe0, 0x98, 0x03, 0x2b, 0x8c]
        });
        signed.extend([0x27, 0, 0, 0]);
        signed.extend(&content[..16]);
        signed.extend(&content[list..]);
        // It ends with the value of the signature.
        let value = &signature[signature.len() - 256..];
        let by = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, public_key(&der(signer)).to_vec());
        assert!(by.verify(&signed, value).is_ok(), "{name}");
        signed[0] ^= 1;
        assert!(by.verify(&signed, value).is_err(), "{name}");
    }
    // What the firmware then has in db.
    let content = &files[2].content;
    let length = u32::from_le_bytes(content[16..20].try_into().expect("four bytes"));
    let list = &content[16 + usize::try_from(length).expect("small")..];
    let firmware = FirmwareTrust::read(|variable| match variable {
        VARIABLE_SECURE_BOOT => Some(vec![7, 0, 0, 0, 1]),
        VARIABLE_DB => Some([&[0x27, 0, 0, 0][..], list].concat()),
        _ => None,
    });
    assert_eq!(firmware.expect("a firmware").keys, [keys.certificate().expect("readable")]);
}

#[test]
fn a_write_has_the_time_of_its_making() {
    let at: UtcSecond = "2026-11-30T09:31:02Z".parse().expect("a time");
    let write = VariableWrite::new("PK", b"certificate", at).expect("small");
    let bytes = write.signed_bytes();
    assert_eq!(bytes[..4], [b'P', 0, b'K', 0]);
    assert_eq!(bytes[24..40], [0xea, 0x07, 11, 30, 9, 31, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert!(write.file(b"no message").is_err());
}

fn file(short: &[u8; 11], content: &[u8], chain: usize) -> FatEntry {
    let mut raw = [0; 32];
    raw[..11].copy_from_slice(short);
    raw[11] = 0x20;
    raw[28..].copy_from_slice(&u32::try_from(content.len()).expect("small").to_le_bytes());
    FatEntry::File(raw, content.to_vec(), chain)
}

/// The tree of a boot loader's volume with two programs, one in a directory.
fn programs() -> Volume {
    let mut volume = volume();
    volume.root.push(file(b"LOADER  EFI", b"MZ loader", 9));
    for entry in &mut volume.root {
        if let FatEntry::Directory(_, below) = entry {
            below.push(file(b"UKI     EFI", b"MZ uki", 64 << 20));
        }
    }
    volume
}

/// Names and contents of the files in a directory, and what is below it.
fn contents(directory: &Directory) -> Vec<Vec<u8>> {
    let one = |entry: &FatEntry| match entry {
        FatEntry::File(raw, content, _) => {
            let bytes = u32::from_le_bytes(raw[28..].try_into().expect("four bytes"));
            assert_eq!(usize::try_from(bytes).expect("small"), content.len());
            vec![content.clone()]
        }
        FatEntry::Directory(_, below) => contents(below),
        _ => Vec::new(),
    };
    directory.iter().flat_map(one).collect()
}

#[test]
fn every_program_is_signed_and_nothing_else() {
    let mut volume = programs();
    let before = contents(&volume.root);
    let mut sign = |program: &[u8]| -> anyhow::Result<Vec<u8>> { Ok([program, b" signed"].concat()) };
    assert_eq!(sign_programs(&mut volume, &mut sign).expect("signed"), 2);
    let after = contents(&volume.root);
    assert_eq!(before.len(), after.len());
    for (was, is) in before.iter().zip(&after) {
        let want = if was.starts_with(b"MZ") { [was.as_slice(), b" signed"].concat() } else { was.clone() };
        assert_eq!(*is, want);
    }
    // A UKI that would leave its chain.
    let mut large = |_: &[u8]| -> anyhow::Result<Vec<u8>> { Ok(vec![b'M'; (64 << 20) + 1]) };
    let refused = sign_programs(&mut volume, &mut large).expect_err("too large").to_string();
    assert!(refused.contains("make the initrd smaller"), "{refused}");
    let mut broken = |_: &[u8]| -> anyhow::Result<Vec<u8>> { anyhow::bail!("no key") };
    assert!(sign_programs(&mut volume, &mut broken).is_err());
}

/// As the loader finds it: through a volume that is written and read.
#[test]
fn the_enrolment_is_where_the_loader_looks() {
    let files = |mark: u8| -> Vec<EnrolmentFile> {
        let names = ["PK.auth", "KEK.auth", "db.auth"];
        names.map(|name| EnrolmentFile { name: name.to_owned(), content: vec![mark; 1500] }).into()
    };
    let mut volume = volume();
    let before = contents(&volume.root);
    for mark in [1, 2] {
        put_enrolment(&mut volume, &files(mark)).expect("put");
        let after = contents(&volume.root);
        assert_eq!((after.len(), &after[..before.len()]), (before.len() + 3, &before[..]));
        assert!(after[before.len()..].iter().all(|content| *content == vec![mark; 1500]));
    }
    let pieces = write(&volume, 264 * MIB, 512, 4096).expect("fits");
    let again = read(|offset, length| Ok(on(&pieces, offset, length))).expect("sound");
    assert_eq!(contents(&again.root), contents(&volume.root));
    let Some(FatEntry::Directory(raw, keys)) = again.root.last() else { panic!("a directory") };
    assert_eq!((&raw[..11], raw[11]), (&b"LOADER     "[..], 0x10));
    let Some(FatEntry::Directory(_, auto)) = keys.last() else { panic!("a directory") };
    let Some(FatEntry::Directory(_, auto)) = auto.last() else { panic!("a directory") };
    let shorts: Vec<&[u8]> = auto
        .iter()
        .filter_map(|entry| match entry {
            FatEntry::File(raw, ..) => Some(&raw[..11]),
            _ => None,
        })
        .collect();
    assert_eq!(shorts, [&b"PK~1    AUT"[..], b"KEK~1   AUT", b"DB~1    AUT"]);
}

fn on(pieces: &[Piece], offset: u64, length: usize) -> Vec<u8> {
    let mut out = vec![0; length];
    for piece in pieces {
        let end = piece.offset + piece.bytes.len() as u64;
        let (from, to) = (piece.offset.max(offset), end.min(offset + length as u64));
        if from < to {
            let [a, b, c, d] = [from - offset, to - offset, from - piece.offset, to - piece.offset]
                .map(|n| usize::try_from(n).expect("small"));
            out[a..b].copy_from_slice(&piece.bytes[c..d]);
        }
    }
    out
}

#[test]
fn a_program_says_who_has_signed_it() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let mut program = vec![0; 5000];
    program[..2].copy_from_slice(b"MZ");
    program[0x3c] = 0x40;
    program[0x40..0x44].copy_from_slice(b"PE\0\0");
    program[0x58..0x5a].copy_from_slice(&[0x0b, 0x02]);
    program[0x58 + 108] = 16;
    let path = dir.path().join("program");
    fs::write(&path, &program).expect("written");
    assert!(program_signatures(&program).expect("a program").is_empty());
    assert!(file_signatures(&path).expect("a program").is_empty());
    let sample = |text: &str| orlop_config::base64::decode(text).expect("base64");
    let table = sample(include_str!("../../../config/src/boot_trust/samples/signatures.b64"));
    let certificate = sample(include_str!("../../../config/src/boot_trust/samples/certificate.b64"));
    let place = [5000, u32::try_from(table.len()).expect("small")].map(u32::to_le_bytes).concat();
    program[0x58 + 144..0x58 + 152].copy_from_slice(&place);
    program.extend(table);
    fs::write(&path, &program).expect("written");
    let signer = BootCertificate::parse(&certificate);
    for found in [program_signatures(&program), file_signatures(&path)] {
        let found = found.expect("signed");
        assert_eq!(found.first().map(|signature| &signature.signer), signer.as_ref());
    }
    // Cut off, and no program.
    assert!(program_signatures(&program[..5000]).expect("cut off").is_empty());
    assert!(program_signatures(&program[..4999]).is_err());
    fs::write(&path, "text").expect("written");
    assert!(file_signatures(&path).is_err());
}
