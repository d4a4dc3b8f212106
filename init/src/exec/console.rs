//! Lines for people: kmsg (which the kernel shows on every console) and, if it would not, the consoles themselves.

use std::fs::{File, OpenOptions};
use std::io::Write;

/// How urgent a line is; the kernel's log levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// A person must act. Shown on the console unless it is silenced altogether.
    Error,
    /// For the log.
    Info,
}

/// Where lines go.
#[derive(Debug, Default)]
pub struct Console {
    tag: &'static str,
    kmsg: Option<File>,
    /// Consoles to which the kernel would not pass the lines.
    ttys: Vec<File>,
}

impl Console {
    /// Opens what is there; call it again once /dev and /proc are mounted. `tag` names the speaker.
    #[must_use]
    pub fn open(tag: &'static str) -> Console {
        let write = |path: &str| OpenOptions::new().write(true).open(path).ok();
        // Kernel default: ten lines in five seconds from user space, then silence. A boot says more than that.
        let _ = std::fs::write("/proc/sys/kernel/printk_devkmsg", "on\n");
        let kmsg = write("/dev/kmsg");
        let shown = kmsg.is_some() && console_loglevel() > 3;
        let ttys = if shown { Vec::new() } else { active().iter().filter_map(|path| write(path)).collect() };
        Console { tag, kmsg, ttys }
    }

    /// One line. Errors also reach the console when the kernel's own console level would swallow them.
    pub fn say(&mut self, level: Level, text: &str) {
        let number = match level {
            Level::Error => 3,
            Level::Info => 6,
        };
        let text = text.replace('\n', " ");
        if let Some(kmsg) = &mut self.kmsg {
            // One write is one record; a record that does not fit is refused, so it is cut.
            let mut line = format!("<{number}>{}: {text}", self.tag);
            line.truncate(line.floor_char_boundary(900));
            // Without it the kernel keeps the record open for a continuation and does not show it yet.
            line.push('\n');
            let _ = kmsg.write_all(line.as_bytes());
        }
        if level == Level::Error {
            for tty in &mut self.ttys {
                let _ = tty.write_all(format!("{}: {text}\r\n", self.tag).as_bytes());
            }
        }
    }
}

/// Every console of the kernel: `/dev/console` is only the last one of the command line.
fn active() -> Vec<String> {
    devices(&std::fs::read_to_string("/sys/class/tty/console/active").unwrap_or_default())
}

fn devices(active: &str) -> Vec<String> {
    let named: Vec<String> = active.split_whitespace().map(|name| format!("/dev/{name}")).collect();
    if named.is_empty() { vec!["/dev/console".to_owned()] } else { named }
}

fn console_loglevel() -> u32 {
    let text = std::fs::read_to_string("/proc/sys/kernel/printk").unwrap_or_default();
    text.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_active_console_is_written_to() {
        assert_eq!(devices("tty0 ttyS0\n"), ["/dev/tty0", "/dev/ttyS0"]);
        assert_eq!(devices(""), ["/dev/console"]);
    }
}
