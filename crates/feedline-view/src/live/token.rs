//! The secret in a page's address.

use std::io;

/// The variable that sets it, for a Prometheus that is configured once.
pub(super) const VARIABLE: &str = "FEEDLINE_DASHBOARD_TOKEN";

/// 128 random bits as hexadecimal digits.
pub(super) fn random() -> io::Result<String> {
    let mut bytes = [0u8; 16];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A token that a user chose must be fit for an address and hard to guess.
pub(super) fn check(token: &str) -> Result<(), String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if !(16..=128).contains(&token.len()) || !token.bytes().all(fits) {
        return Err(format!(
            "{VARIABLE} must have 16 to 128 letters, digits, - or _, such as `openssl rand -hex 16` makes"
        ));
    }
    Ok(())
}

/// Whether they are equal, in a time that does not show how far they are.
pub(super) fn same(given: &[u8], token: &[u8]) -> bool {
    let differing = given.iter().zip(token).fold(0, |sum, (a, b)| sum | (a ^ b));
    given.len() == token.len() && std::hint::black_box(differing) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_long_and_never_the_same() {
        let (one, two) = (random().unwrap(), random().unwrap());
        assert!(one.len() == 32 && one != two);
        assert!(check(&one).is_ok());
        for bad in ["", "short", "with/slash-and-more-of-it", "ünüsüal-öber-lönge"] {
            assert!(check(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn only_the_whole_token_is_the_same() {
        assert!(same(b"abcdef", b"abcdef"));
        for other in ["", "abcde", "abcdeg", "abcdefg", "Abcdef"] {
            assert!(!same(other.as_bytes(), b"abcdef"), "{other}");
        }
    }
}
