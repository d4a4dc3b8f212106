//! Certificates of openssl and signatures of systemd-sbsign (`samples/`), as they are and damaged.

use super::*;
use crate::base64;
use proptest::prelude::*;

fn sample(text: &str) -> Vec<u8> {
    base64::decode(text).expect("base64")
}

fn certificate() -> Vec<u8> {
    sample(include_str!("samples/certificate.b64"))
}

fn other() -> Vec<u8> {
    sample(include_str!("samples/other.b64"))
}

fn table() -> Vec<u8> {
    sample(include_str!("samples/signatures.b64"))
}

/// The beginning of a PE32+ file with its signatures there.
fn head(offset: u32, length: u32) -> Vec<u8> {
    let mut head = vec![0; 512];
    head[..2].copy_from_slice(b"MZ");
    head[0x3c] = 0x40;
    head[0x40..0x44].copy_from_slice(b"PE\0\0");
    let optional = 0x40 + 24;
    head[optional..optional + 2].copy_from_slice(&0x20b_u16.to_le_bytes());
    head[optional + 108] = 16;
    head[optional + 144..optional + 148].copy_from_slice(&offset.to_le_bytes());
    head[optional + 148..optional + 152].copy_from_slice(&length.to_le_bytes());
    head
}

/// A list of certificates, as `db` has it.
fn list(certificate: &[u8]) -> Vec<u8> {
    let each = u32::try_from(certificate.len() + 16).expect("small");
    let mut list = X509_SIGNATURE_TYPE.to_vec();
    for field in [each + 28, 0, each] {
        list.extend(field.to_le_bytes());
    }
    list.extend([0; 16]);
    list.extend(certificate);
    list
}

/// Variables of a firmware with this certificate.
fn firmware(secure_boot: u8, setup_mode: u8, db: &[u8]) -> Option<FirmwareTrust> {
    let variable = |content: &[u8]| Some([&[6, 0, 0, 0][..], content].concat());
    FirmwareTrust::read(|name| match name {
        VARIABLE_SECURE_BOOT => variable(&[secure_boot]),
        VARIABLE_SETUP_MODE => variable(&[setup_mode]),
        VARIABLE_DB => variable(db),
        other => panic!("{other}"),
    })
}

#[test]
fn a_certificate_has_its_common_name() {
    let name = |der: &[u8]| BootCertificate::parse(der).map(|certificate| certificate.name());
    assert_eq!(name(&certificate()).as_deref(), Some("Orlop db 0a1b2c3d"));
    assert_eq!(name(&other()).as_deref(), Some("Orlop db"));
    assert_eq!(name(b""), None);
    assert_eq!(name(&certificate()[..100]), None);
    // A name of a stranger reaches consoles.
    let mut strange = certificate();
    let places: Vec<usize> =
        (0..strange.len() - 5).filter(|at| strange[*at..].starts_with(b"Orlop")).collect();
    assert_eq!(places.len(), 2);
    places.iter().for_each(|at| strange[*at] = 0x1b);
    assert_eq!(name(&strange).as_deref(), Some("?rlop db 0a1b2c3d"));
}

#[test]
fn a_boot_file_says_where_its_signatures_are() {
    assert_eq!(signature_place(&head(1024, 96)), Ok(Some(SignaturePlace { offset: 1024, length: 96 })));
    assert_eq!(signature_place(&head(0, 0)), Ok(None));
    let mut few = head(1024, 96);
    few[0x40 + 24 + 108] = 4;
    assert_eq!(signature_place(&few), Ok(None));
    for broken in [&b""[..], b"MZ", &head(1, 1)[..150], &[0; 512]] {
        assert_eq!(signature_place(broken), Err(NoBootFile));
    }
}

#[test]
fn a_signature_names_its_certificate() {
    let found = signatures(&table());
    assert_eq!(found.len(), 1);
    assert_eq!(Some(&found[0].signer), BootCertificate::parse(&certificate()).as_ref());
    assert_eq!(found[0].certificates.len(), 1);
    // Two of them, as a file has that was signed for two keys.
    assert_eq!(signatures(&[table(), table()].concat()).len(), 2);
    assert!(signatures(b"").is_empty() && signatures(&[0; 64]).is_empty());
    assert!(signatures(&table()[..700]).is_empty());
}

#[test]
fn the_firmware_says_what_it_starts() {
    let words = |firmware: Option<FirmwareTrust>| firmware.map(|trust| trust.to_string());
    let db = [list(&certificate()), list(&other())].concat();
    let on = firmware(1, 0, &db);
    assert_eq!(words(on).as_deref(), Some("Secure Boot on (keys: Orlop db 0a1b2c3d, Orlop db)"));
    assert_eq!(words(firmware(0, 1, &[])).as_deref(), Some("Secure Boot off (setup mode)"));
    assert_eq!(words(firmware(0, 0, &db)).as_deref(), Some("Secure Boot off"));
    assert_eq!(words(firmware(1, 0, &[])).as_deref(), Some("Secure Boot on (keys: unknown)"));
    let many = list(&certificate()).repeat(6);
    assert!(words(firmware(1, 0, &many)).is_some_and(|words| words.ends_with(" and 2 more)")));
    assert_eq!(FirmwareTrust::read(|_| None), None);
    // A list of digests in front of it, whose header is longer.
    let mut digests = vec![7; 28];
    digests[16..20].copy_from_slice(&60_u32.to_le_bytes());
    digests[20..24].copy_from_slice(&0_u32.to_le_bytes());
    digests[24..28].copy_from_slice(&32_u32.to_le_bytes());
    digests.extend([9; 32]);
    let mixed = firmware(1, 0, &[digests, list(&other())].concat()).expect("a firmware");
    assert_eq!(mixed.keys.len(), 1);
}

#[test]
fn only_a_firmware_with_secure_boot_refuses() {
    let signed = signatures(&table());
    let judge = |secure_boot: u8, db: &[u8], signatures: &[BootSignature]| {
        firmware(secure_boot, 0, db).expect("a firmware").judge(signatures)
    };
    let (own, foreign) = (list(&certificate()), list(&other()));
    assert_eq!(judge(1, &[foreign.clone(), own.clone()].concat(), &signed), Ok(()));
    assert_eq!(judge(0, &foreign, &signed), Ok(()));
    assert_eq!(judge(0, &own, &[]), Ok(()));
    let unsigned = judge(1, &own, &[]).expect_err("not signed").to_string();
    assert!(unsigned.starts_with("its UKI is not signed") && unsigned.contains("Orlop db 0a1b2c3d has"));
    let refused = judge(1, &foreign, &signed).expect_err("another key").to_string();
    assert!(
        refused.contains("signed by Orlop db 0a1b2c3d, and") && refused.contains("only what Orlop db has")
    );
}

/// A certificate of nothing but names.
fn issued(issuer: &str, subject: &str) -> BootCertificate {
    let der =
        |tag: u8, content: &[u8]| [&[tag, u8::try_from(content.len()).expect("short")][..], content].concat();
    let name = |text: &str| {
        let attribute = [der(0x06, &[0x55, 0x04, 0x03]), der(0x0c, text.as_bytes())].concat();
        der(0x30, &der(0x31, &der(0x30, &attribute)))
    };
    let body = [der(0x02, &[1]), der(0x30, &[]), name(issuer), der(0x30, &[]), name(subject)].concat();
    BootCertificate::parse(&der(0x30, &der(0x30, &body))).expect("a certificate")
}

/// A stranger may put any certificate beside a signature.
#[test]
fn only_the_chain_of_the_signer_counts() {
    let root = issued("Root", "Root");
    let firmware = FirmwareTrust { mode: SecureBootMode::On, keys: vec![root.clone()] };
    let judge = |signer: BootCertificate, others: Vec<BootCertificate>| {
        let certificates = [vec![signer.clone()], others].concat();
        firmware.judge(&[BootSignature { signer, certificates }])
    };
    assert_eq!(judge(root.clone(), Vec::new()), Ok(()));
    assert_eq!(judge(issued("Root", "Signer"), Vec::new()), Ok(()));
    assert_eq!(judge(issued("Middle", "Signer"), vec![issued("Root", "Middle")]), Ok(()));
    for (signer, others) in [
        (issued("Middle", "Signer"), Vec::new()),
        (issued("Signer", "Signer"), vec![root.clone()]),
        (issued("Other", "Signer"), vec![root.clone(), issued("Root", "Middle")]),
        // A circle has an end.
        (issued("B", "A"), vec![issued("A", "B"), root.clone()]),
    ] {
        let refused = judge(signer, others);
        assert!(matches!(refused, Err(BootRefusal::Foreign { .. })), "{refused:?}");
    }
}

#[test]
fn without_a_known_key_a_signature_will_do() {
    let firmware = firmware(1, 0, &[]).expect("a firmware");
    assert_eq!(firmware.judge(&signatures(&table())), Ok(()));
    let unsigned = firmware.judge(&[]).expect_err("not signed").to_string();
    assert!(unsigned.contains("starts only what a certificate of its db has signed"), "{unsigned}");
}

#[test]
fn the_signed_data_stands_in_the_message() {
    let table = table();
    let data = signed_data(&table[8..]).expect("a message");
    // SEQUENCE with two bytes of length, version 1, SHA-256: what firmware looks for.
    assert_eq!((data[0], data[1], &data[4..7]), (0x30, 0x82, &[2, 1, 1][..]));
    assert_eq!(data[13..22], [0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x01]);
    assert_eq!(signed_data(&certificate()), None);
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let _ = BootCertificate::parse(&bytes).map(|certificate| certificate.name());
        let _ = signature_place(&bytes);
        let _ = signatures(&bytes);
        let _ = firmware(1, 0, &bytes);
    }

    #[test]
    fn a_changed_byte_makes_it_no_panic(at in 0usize..1500, byte in any::<u8>(), cut in 0usize..1600) {
        let mut table = table();
        if let Some(place) = table.get_mut(at) {
            *place = byte;
        }
        table.truncate(cut);
        let _ = signatures(&table);
        let mut der = certificate();
        if let Some(place) = der.get_mut(at) {
            *place = byte;
        }
        let _ = BootCertificate::parse(&der).map(|certificate| certificate.name());
        let _ = firmware(1, 0, &list(&der));
    }
}
