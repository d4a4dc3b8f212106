//! Boot code of the protective MBR: the disk boots by UEFI alone, and a machine that starts it by BIOS says so on its
//! screen and its first serial port, instead of nothing (docs/decisions/bios.md).
//!
//! Real mode, 8086 and `pusha`; the BIOS loads the sector to 0000:7c00. The code changes nothing on the disk.

/// Bytes of an MBR before its disk signature and partition table, which are not ours.
pub const CODE_BYTES: usize = 440;
/// What a person reads.
pub const MESSAGE: &str = "Orlop needs UEFI firmware, and this machine has started it by BIOS.\r\n\
    Switch the machine's firmware to UEFI, with Secure Boot off, and start again.\r\n";
/// Where the BIOS loads the sector.
const LOADED_AT: u16 = 0x7c00;
/// Where the code has the message's address.
const ADDRESS_AT: usize = 0x1f;

const CODE: [u8; 0x45] = [
    0x31, 0xc0, //             xor ax, ax
    0x8e, 0xd8, //             mov ds, ax
    0x8e, 0xd0, //             mov ss, ax
    0xbc, 0x00, 0x7c, //       mov sp, 7c00
    0xfb, //                   sti
    0xfc, //                   cld
    0xba, 0xfb, 0x03, //       mov dx, 3fb       first serial port: 115200 baud, 8 bits, no parity
    0xb0, 0x80, //             mov al, 80
    0xee, //                   out dx, al
    0xb2, 0xf8, //             mov dl, f8
    0xb0, 0x01, //             mov al, 1
    0xee, //                   out dx, al
    0x42, //                   inc dx
    0x48, //                   dec ax
    0xee, //                   out dx, al
    0xb2, 0xfb, //             mov dl, fb
    0xb0, 0x03, //             mov al, 3
    0xee, //                   out dx, al
    0xbe, 0x00, 0x00, //       mov si, MESSAGE   (ADDRESS_AT)
    0xac, //             next: lodsb
    0x84, 0xc0, //             test al, al
    0x74, 0x1c, //             jz end
    0x60, //                   pusha
    0xb4, 0x0e, //             mov ah, 0e        the screen: teletype
    0xbb, 0x07, 0x00, //       mov bx, 7
    0xcd, 0x10, //             int 10
    0x61, //                   popa
    0x88, 0xc4, //             mov ah, al
    0xba, 0xfd, 0x03, //       mov dx, 3fd
    0x31, 0xc9, //             xor cx, cx        65536 looks at most: no port, no wait
    0xec, //             wait: in al, dx
    0xa8, 0x20, //             test al, 20
    0xe1, 0xfb, //             loopz wait
    0xb2, 0xf8, //             mov dl, f8
    0x88, 0xe0, //             mov al, ah
    0xee, //                   out dx, al
    0xeb, 0xdf, //             jmp next
    0xf4, //              end: hlt               interrupts are on: Ctrl-Alt-Del works
    0xeb, 0xfd, //             jmp end
];

/// The first bytes of the disk.
#[must_use]
pub fn boot_code() -> [u8; CODE_BYTES] {
    let mut out = [0; CODE_BYTES];
    out[..CODE.len()].copy_from_slice(&CODE);
    let address = usize::from(LOADED_AT) + CODE.len();
    let address = u16::try_from(address).expect("behind the code, in the same sector");
    out[ADDRESS_AT..ADDRESS_AT + 2].copy_from_slice(&address.to_le_bytes());
    // The zero behind it ends the message.
    out[CODE.len()..][..MESSAGE.len()].copy_from_slice(MESSAGE.as_bytes());
    out
}

#[cfg(test)]
#[path = "mbr_tests.rs"]
mod tests;
