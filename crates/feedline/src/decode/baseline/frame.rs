//! What a baseline file says before its scan. Anything out of the ordinary is left to the library.

use super::huffman::natural;

/// One colour component.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Component {
    id: u8,
    /// Blocks of a unit across and down.
    pub(super) across: usize,
    pub(super) down: usize,
    /// Numbers of its tables.
    pub(super) quantiser: usize,
    pub(super) dc: usize,
    pub(super) ac: usize,
}

/// A file's frame and its one scan.
#[derive(Debug)]
pub(super) struct Frame<'a> {
    pub(super) height: usize,
    pub(super) width: usize,
    /// One (grayscale) or three (YCbCr).
    pub(super) components: &'static [usize],
    pub(super) component: [Component; 3],
    /// Factors of the coefficients, in natural order.
    pub(super) quantisers: [[i16; 64]; 4],
    /// Definitions of the codes: first coefficients, then the others.
    pub(super) codes: [[&'a [u8]; 4]; 2],
    /// Units between restart markers; 0 if there are none.
    pub(super) restart: usize,
    /// The scan's data and what follows.
    pub(super) scan: &'a [u8],
}

impl<'a> Frame<'a> {
    /// None if the file is anything but a plain baseline JPEG in one scan.
    pub(super) fn read(bytes: &'a [u8]) -> Option<Frame<'a>> {
        let mut frame = Frame {
            height: 0,
            width: 0,
            components: &[],
            component: [Component::default(); 3],
            quantisers: [[0; 64]; 4],
            codes: [[&[]; 4]; 2],
            restart: 0,
            scan: &[],
        };
        let (mut jfif, mut adobe) = (false, None);
        let mut rest = bytes.strip_prefix(&[0xff, 0xd8])?;
        loop {
            let &[0xff, marker, high, low, ref body @ ..] = rest else { return None };
            let length = usize::from(u16::from_be_bytes([high, low])).checked_sub(2)?;
            let (body, after) = body.split_at_checked(length)?;
            match marker {
                0xc0 | 0xc1 => frame.read_frame(body)?,
                0xc4 => frame.read_codes(body)?,
                0xda => {
                    frame.read_scan(body)?;
                    frame.scan = after;
                    return frame.is_plain(jfif, adobe).then_some(frame);
                }
                0xdb => frame.read_quantisers(body)?,
                0xdd => frame.restart = usize::from(u16::from_be_bytes(body.try_into().ok()?)),
                // Shorter ones mean nothing to libjpeg.
                0xe0 => jfif |= body.len() >= 14 && body.starts_with(b"JFIF\0"),
                0xee if body.len() >= 12 && body.starts_with(b"Adobe") => adobe = Some(body[11]),
                0xe0..=0xef | 0xfe => {}
                _ => return None,
            }
            rest = after;
        }
    }

    fn read_frame(&mut self, body: &[u8]) -> Option<()> {
        let (&[8, h1, h0, w1, w0, count], entries) = body.split_first_chunk()? else {
            return None;
        };
        if !self.components.is_empty() {
            return None;
        }
        self.height = usize::from(u16::from_be_bytes([h1, h0]));
        self.width = usize::from(u16::from_be_bytes([w1, w0]));
        self.components = match count {
            1 => &[0],
            3 => &[0, 1, 2],
            _ => return None,
        };
        let (entries, _) = entries.as_chunks::<3>();
        for (component, [id, factors, quantiser]) in self.component.iter_mut().zip(entries) {
            *component = Component {
                id: *id,
                across: usize::from(factors >> 4),
                down: usize::from(factors & 15),
                quantiser: usize::from(*quantiser),
                ..Component::default()
            };
        }
        (entries.len() >= usize::from(count) && self.height > 0 && self.width > 0).then_some(())
    }

    fn read_quantisers(&mut self, mut body: &[u8]) -> Option<()> {
        while let Some((number, rest)) = body.split_first() {
            // The high half would announce 16 bits each.
            let (factors, rest) = rest.split_first_chunk::<64>()?;
            let table = self.quantisers.get_mut(usize::from(*number))?;
            for (i, factor) in factors.iter().enumerate() {
                table[natural(i)] = i16::from(*factor);
            }
            body = rest;
        }
        Some(())
    }

    fn read_codes(&mut self, mut body: &'a [u8]) -> Option<()> {
        while let Some((&number, rest)) = body.split_first() {
            let counts = rest.first_chunk::<16>()?;
            let symbols: usize = counts.iter().map(|n| usize::from(*n)).sum();
            let (definition, rest) = rest.split_at_checked(16 + symbols)?;
            *self.codes.get_mut(usize::from(number >> 4))?.get_mut(usize::from(number & 15))? =
                definition;
            body = rest;
        }
        Some(())
    }

    fn read_scan(&mut self, body: &[u8]) -> Option<()> {
        let (&count, rest) = body.split_first()?;
        if usize::from(count) != self.components.len() || count == 0 {
            return None;
        }
        let (entries, spectrum) = rest.split_at_checked(2 * usize::from(count))?;
        for (component, entry) in self.component.iter_mut().zip(entries.as_chunks::<2>().0) {
            if entry[0] != component.id {
                return None;
            }
            component.dc = usize::from(entry[1] >> 4);
            component.ac = usize::from(entry[1] & 15);
            if component.dc > 3 || component.ac > 3 || component.quantiser > 3 {
                return None;
            }
        }
        (spectrum == [0, 63, 0]).then_some(())
    }

    /// True if colours and sampling are ones that every camera writes.
    fn is_plain(&mut self, jfif: bool, adobe: Option<u8>) -> bool {
        let defined = self.components.iter().all(|i| {
            let component = &self.component[*i];
            // A factor of 0 is a table that was never defined.
            self.quantisers[component.quantiser].iter().all(|factor| *factor > 0)
        });
        if !defined {
            return false;
        }
        if self.components.len() == 1 {
            // A scan of one component has one block a unit, whatever its factors.
            (self.component[0].across, self.component[0].down) = (1, 1);
            return true;
        }
        let [first, second, third] = &self.component;
        let ids = [first.id, second.id, third.id];
        let is_ycc = match (jfif, adobe) {
            (true, _) => true,
            (false, Some(transform)) => transform == 1,
            (false, None) => ids == [1, 2, 3],
        };
        let factors = |c: &Component| (c.across, c.down);
        is_ycc
            && matches!(factors(first), (1, 1) | (2, 1) | (1, 2) | (2, 2))
            && factors(second) == (1, 1)
            && factors(third) == (1, 1)
    }

    /// Units across and down the image.
    pub(super) fn units(&self) -> (usize, usize) {
        let unit = &self.component[0];
        (self.width.div_ceil(8 * unit.across), self.height.div_ceil(8 * unit.down))
    }

    /// How many restart markers the scan has.
    pub(super) fn restarts(&self) -> usize {
        let (wide, high) = self.units();
        (wide * high).saturating_sub(1).checked_div(self.restart).unwrap_or(0)
    }
}
