//! A VM's screen: the kernel's text, and the picture that QEMU draws. Pure.
//!
//! In: /dev/vcsa1 of the guest, a PPM of `screendump`. Out: the text, once the picture shows it. No font is needed for that: on
//! a screen that shows a text, each character has one shape wherever it stands, two characters have two shapes, and a blank
//! has none. A dark screen, a picture of another text, or one that is a line behind breaks one of the three.

use std::collections::BTreeMap;

/// Brightness of a lit pixel, sum of three colours. The console's grey has 510, its dark colours 170.
const LIT: u32 = 150;
/// Characters that a screen has at least; fewer prove nothing.
const CHARACTERS_MIN: usize = 40;
/// Cells of a hundred that may look different: those at the cursor, and accents of a font with few shapes.
const OTHERS_MAX_PERCENT: usize = 2;
/// A character that stands in fewer cells has no shape to compare with others.
const OFTEN: usize = 3;

/// A text screen as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextScreen {
    columns: usize,
    rows: usize,
    characters: Vec<u8>,
}

impl TextScreen {
    /// vcsa(4): rows, columns, the cursor's place, then a character and its attribute for each cell.
    #[must_use]
    pub fn parse(vcsa: &[u8]) -> Option<TextScreen> {
        let [rows, columns, _, _, cells @ ..] = vcsa else { return None };
        let (rows, columns) = (usize::from(*rows), usize::from(*columns));
        let whole = rows * columns > 0 && cells.len() == rows * columns * 2;
        let characters = cells.chunks_exact(2).map(|cell| cell[0]).collect();
        whole.then_some(TextScreen { columns, rows, characters })
    }

    /// All rows without a break between them, as the kernel wraps a long line.
    #[must_use]
    pub fn text(&self) -> String {
        self.characters.iter().map(|c| char::from(*c)).collect()
    }

    /// The rows, for people.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let rows = self.characters.chunks(self.columns);
        rows.map(|row| row.iter().map(|c| char::from(*c)).collect::<String>().trim_end().to_owned()).collect()
    }
}

/// The picture of a screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    width: usize,
    height: usize,
    lit: Vec<bool>,
}

impl Picture {
    /// A PPM of type P6 with one byte for each colour.
    #[must_use]
    pub fn parse(ppm: &[u8]) -> Option<Picture> {
        // Magic, width, height and the largest value are words; one white space ends the last one.
        let mut words = Vec::new();
        let mut at = 0;
        while words.len() < 4 {
            let start = at + ppm.get(at..)?.iter().position(|b| !b.is_ascii_whitespace())?;
            at = start + ppm.get(start..)?.iter().position(u8::is_ascii_whitespace)?;
            words.push(std::str::from_utf8(ppm.get(start..at)?).ok()?);
        }
        let [magic, width, height, most] = words.as_slice() else { return None };
        let (width, height): (usize, usize) = (width.parse().ok()?, height.parse().ok()?);
        let pixels = ppm.get(at + 1..)?;
        let whole =
            *magic == "P6" && *most == "255" && pixels.len() == width.checked_mul(height)?.checked_mul(3)?;
        let lit =
            pixels.chunks_exact(3).map(|p| p.iter().map(|c| u32::from(*c)).sum::<u32>() > LIT).collect();
        whole.then_some(Picture { width, height, lit })
    }

    /// The pixels of one cell.
    fn cell(&self, screen: &TextScreen, n: usize) -> Vec<bool> {
        let (width, height) = (self.width / screen.columns, self.height / screen.rows);
        let (left, top) = (n % screen.columns * width, n / screen.columns * height);
        let row = |y: usize| &self.lit[y * self.width + left..y * self.width + left + width];
        (top..top + height).flat_map(|y| row(y).iter().copied()).collect()
    }

    /// Whether the picture shows the text.
    ///
    /// # Errors
    /// What differs.
    pub fn shows(&self, screen: &TextScreen) -> Result<(), String> {
        if !self.width.is_multiple_of(screen.columns) || !self.height.is_multiple_of(screen.rows) {
            let (columns, rows) = (screen.columns, screen.rows);
            return Err(format!("{}x{} pixels are not {columns}x{rows} characters", self.width, self.height));
        }
        let mut cells: BTreeMap<u8, BTreeMap<Vec<bool>, usize>> = BTreeMap::new();
        for (n, character) in screen.characters.iter().enumerate() {
            let blank = if *character == 0 { b' ' } else { *character };
            *cells.entry(blank).or_default().entry(self.cell(screen, n)).or_default() += 1;
        }
        let characters = screen.characters.iter().filter(|c| c.is_ascii_graphic()).count();
        if characters < CHARACTERS_MIN {
            return Err(format!("only {characters} characters are on the screen"));
        }
        let mut others = 0;
        let mut shapes: BTreeMap<&Vec<bool>, u8> = BTreeMap::new();
        for (character, found) in &cells {
            let (count, sum) = (found.values().copied().max().unwrap_or(0), found.values().sum::<usize>());
            others += sum - count;
            let Some((shape, _)) = found.iter().find(|(_, n)| **n == count) else { continue };
            let is_dark = !shape.contains(&true);
            let shown = char::from(*character);
            if sum < OFTEN {
                continue;
            }
            if is_dark != (*character == b' ') {
                return Err(format!("{shown:?} is {}", if is_dark { "dark" } else { "not blank" }));
            }
            if let Some(same) = shapes.insert(shape, *character) {
                return Err(format!("{:?} and {shown:?} look the same", char::from(same)));
            }
        }
        if others * 100 > screen.characters.len() * OTHERS_MAX_PERCENT {
            return Err(format!("{others} cells do not show their character"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: [&str; 4] = [
        "[    1.0] orlop-agent: -- node -- ready ",
        "[    1.0] orlop-agent:    no problem    ",
        "one more line with letters and 01234567 ",
        "                                        ",
    ];

    fn screen(rows: &[&str]) -> TextScreen {
        let columns = rows[0].len();
        let mut bytes = vec![u8::try_from(rows.len()).unwrap(), u8::try_from(columns).unwrap(), 0, 0];
        bytes.extend(rows.iter().flat_map(|row| row.bytes()).flat_map(|b| [b, 7]));
        TextScreen::parse(&bytes).unwrap()
    }

    /// A picture with cells of 8x8 pixels: a made-up font, in which a character's bits are its shape.
    fn draw(screen: &TextScreen) -> Vec<u8> {
        let mut ppm = format!("P6\n{} {}\n255\n", screen.columns * 8, screen.rows * 8).into_bytes();
        for y in 0..screen.rows * 8 {
            for x in 0..screen.columns * 8 {
                let character = screen.characters[y / 8 * screen.columns + x / 8];
                let lit = character != b' ' && (character >> (x % 8)) & 1 == 1 && y % 8 != 0;
                ppm.extend(if lit { [170; 3] } else { [0; 3] });
            }
        }
        ppm
    }

    #[test]
    fn a_picture_of_the_text_shows_it() {
        let screen = screen(&TEXT);
        let mut ppm = draw(&screen);
        assert_eq!(Picture::parse(&ppm).unwrap().shows(&screen), Ok(()));
        assert!(screen.text().contains("ready [    1.0] orlop-agent"));
        assert_eq!(screen.lines()[1], TEXT[1].trim_end());
        // A cursor at an empty cell.
        let end = ppm.len();
        ppm[end - 24..].fill(255);
        assert_eq!(Picture::parse(&ppm).unwrap().shows(&screen), Ok(()));
    }

    #[test]
    fn a_dark_picture_and_one_of_another_text_do_not() {
        let screen = screen(&TEXT);
        let refused = |ppm: &[u8]| Picture::parse(ppm).unwrap().shows(&screen).unwrap_err();
        let mut dark = draw(&screen);
        let pixels = dark.len() - screen.characters.len() * 64 * 3;
        dark[pixels..].fill(0);
        assert!(refused(&dark).contains("dark"), "{}", refused(&dark));
        // One line behind.
        let behind = self::screen(&[TEXT[3], TEXT[0], TEXT[1], TEXT[2]]);
        refused(&draw(&behind));
        // Another sentence in one line.
        let other = self::screen(&[TEXT[0], "[    1.0] orlop-agent:    token refused ", TEXT[2], TEXT[3]]);
        assert!(refused(&draw(&other)).contains("cells do not show"), "{}", refused(&draw(&other)));
        let smaller = self::screen(&TEXT[..3]);
        assert!(Picture::parse(&draw(&screen)).unwrap().shows(&smaller).is_err());
    }

    #[test]
    fn an_almost_empty_screen_proves_nothing() {
        let screen = screen(&["login:    ", "          "]);
        let error = Picture::parse(&draw(&screen)).unwrap().shows(&screen).unwrap_err();
        assert!(error.contains("only 6 characters"), "{error}");
    }

    #[test]
    fn other_bytes_are_neither() {
        for bytes in [&b""[..], b"P6\n1 1\n255\n", b"P5\n1 1\n255\n...", b"P6 9999999999999999999 2 255 "] {
            assert_eq!(Picture::parse(bytes), None);
        }
        for bytes in [&b""[..], &[0, 0, 0, 0], &[2, 2, 0, 0, 1, 1]] {
            assert_eq!(TextScreen::parse(bytes), None);
        }
    }
}
