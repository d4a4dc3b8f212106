//! Tests of the boot code: a processor that knows the instructions of this code, a screen and a serial port.

use super::*;

/// A machine in real mode, as far as the boot code uses it.
struct Machine {
    memory: Vec<u8>,
    ip: u16,
    ax: u16,
    bx: u16,
    cx: u16,
    dx: u16,
    si: u16,
    zero: bool,
    pushed: Option<[u16; 5]>,
    screen: String,
    /// What was written to the port at 3f8, after the divisor was set.
    serial: String,
    divisor: [u8; 2],
    line_control: u8,
    /// Looks at the line status until the port takes the next byte; `None`: it never does.
    busy: Option<u32>,
    looks: u32,
}

impl Machine {
    fn new(busy: Option<u32>) -> Machine {
        let mut memory = vec![0; 0x1_0000];
        memory[0x7c00..0x7c00 + CODE_BYTES].copy_from_slice(&boot_code());
        let (screen, serial, pushed) = (String::new(), String::new(), None);
        let [ax, bx, cx, dx, si] = [0xdead; 5];
        let (divisor, line_control, looks, zero) = ([0; 2], 0, 0, false);
        Machine {
            memory,
            ip: 0x7c00,
            ax,
            bx,
            cx,
            dx,
            si,
            zero,
            pushed,
            screen,
            serial,
            divisor,
            line_control,
            busy,
            looks,
        }
    }

    fn byte(&mut self) -> u8 {
        let byte = self.memory[usize::from(self.ip)];
        self.ip += 1;
        byte
    }

    fn word(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    fn jump(&mut self, when: bool) {
        let distance = i16::from(self.byte().cast_signed());
        if when {
            self.ip = self.ip.wrapping_add_signed(distance);
        }
    }

    fn low(register: u16, value: u8) -> u16 {
        (register & 0xff00) | u16::from(value)
    }

    fn high(register: u16, value: u8) -> u16 {
        (register & 0xff) | (u16::from(value) << 8)
    }

    fn out(&mut self) {
        let value = self.ax.to_le_bytes()[0];
        match (self.dx, self.line_control & 0x80 != 0) {
            (0x3fb, _) => self.line_control = value,
            (0x3f8, true) => self.divisor[0] = value,
            (0x3f9, true) => self.divisor[1] = value,
            (0x3f8, false) => {
                self.serial.push(char::from(value));
                self.looks = 0;
            }
            other => panic!("a write to {other:x?}"),
        }
    }

    fn status(&mut self) -> u8 {
        assert_eq!(self.dx, 0x3fd);
        self.looks += 1;
        if self.busy.is_some_and(|busy| self.looks > busy) { 0x60 } else { 0 }
    }

    /// One instruction; false: the processor halts.
    fn step(&mut self) -> bool {
        match self.byte() {
            0x31 => match self.byte() {
                0xc0 => self.ax = 0,
                0xc9 => self.cx = 0,
                other => panic!("xor {other:x}"),
            },
            // Segments, stack, flags: the memory here has one segment.
            0x8e => assert_eq!((self.ax, [0xd8, 0xd0].contains(&self.byte())), (0, true)),
            0xbc => assert_eq!(self.word(), 0x7c00),
            0xfb | 0xfc => {}
            0xba => self.dx = self.word(),
            0xbb => self.bx = self.word(),
            0xbe => self.si = self.word(),
            0xb0 => self.ax = Machine::low(self.ax, self.byte()),
            0xb2 => self.dx = Machine::low(self.dx, self.byte()),
            0xb4 => self.ax = Machine::high(self.ax, self.byte()),
            0xee => self.out(),
            0x42 => self.dx += 1,
            0x48 => self.ax -= 1,
            0xac => {
                self.ax = Machine::low(self.ax, self.memory[usize::from(self.si)]);
                self.si += 1;
            }
            0x84 => {
                assert_eq!(self.byte(), 0xc0);
                self.zero = self.ax.to_le_bytes()[0] == 0;
            }
            0x74 => self.jump(self.zero),
            0x60 => self.pushed = Some([self.ax, self.bx, self.cx, self.dx, self.si]),
            0x61 => {
                let pushed = self.pushed.take().expect("pushed before");
                [self.ax, self.bx, self.cx, self.dx, self.si] = pushed;
            }
            0xcd => {
                assert_eq!((self.byte(), self.ax >> 8, self.bx), (0x10, 0x0e, 7));
                self.screen.push(char::from(self.ax.to_le_bytes()[0]));
                // A BIOS may change any of them.
                [self.ax, self.bx, self.cx, self.dx, self.si] = [0xbeef; 5];
            }
            0x88 => match self.byte() {
                0xc4 => self.ax = Machine::high(self.ax, self.ax.to_le_bytes()[0]),
                0xe0 => self.ax = Machine::low(self.ax, self.ax.to_le_bytes()[1]),
                other => panic!("mov {other:x}"),
            },
            0xec => self.ax = Machine::low(self.ax, self.status()),
            0xa8 => self.zero = self.ax.to_le_bytes()[0] & self.byte() == 0,
            0xe1 => {
                self.cx = self.cx.wrapping_sub(1);
                self.jump(self.cx != 0 && self.zero);
            }
            0xeb => self.jump(true),
            0xf4 => return false,
            other => panic!("instruction {other:x} at {:x}", self.ip - 1),
        }
        true
    }

    /// Runs until the processor halts.
    fn run(mut self) -> Machine {
        for _ in 0..100_000_000 {
            if !self.step() {
                return self;
            }
        }
        panic!("it does not end");
    }
}

#[test]
fn screen_and_serial_port_show_the_message() {
    let mut machine = Machine::new(Some(3)).run();
    assert_eq!(machine.screen, MESSAGE);
    assert_eq!(machine.serial, MESSAGE);
    // 115200 baud, eight bits.
    assert_eq!((machine.divisor, machine.line_control), ([1, 0], 3));
    // After each interrupt it halts again.
    assert!(machine.step() && !machine.step());
}

#[test]
fn a_port_that_takes_nothing_does_not_hold_the_screen_up() {
    assert_eq!(Machine::new(None).run().screen, MESSAGE);
}

#[test]
fn the_message_ends_before_what_is_not_ours() {
    let code = boot_code();
    assert_eq!(code[CODE.len() + MESSAGE.len()..].iter().max(), Some(&0), "no zero behind the message");
    assert!(MESSAGE.is_ascii());
}
