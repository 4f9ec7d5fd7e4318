//! The job's secret, and the proofs made with it.

use super::error::BootstrapError;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use std::fmt;

/// A job's shared secret. It never travels and is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Token([u8; 32]);

impl Token {
    /// A fresh secret from the system.
    pub fn random() -> Result<Self, BootstrapError> {
        Ok(Self(random()?))
    }

    /// The token of a secret given as bytes. As hard to guess as they are.
    pub fn derive(secret: &[u8]) -> Self {
        Self(Sha256::digest(secret).into())
    }

    /// The secret as text, for a launcher to hand to its children.
    pub fn reveal(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The proof that this token was known to whoever said `transcript` in the role of `role`.
    pub(super) fn sign(&self, role: &str, transcript: &[&[u8]]) -> [u8; 32] {
        self.mac(role, transcript).finalize().into_bytes().into()
    }

    /// Whether `proof` was signed with this token. Takes the same time wherever they differ.
    pub(super) fn verify(&self, role: &str, transcript: &[&[u8]], proof: &[u8]) -> bool {
        self.mac(role, transcript).verify_slice(proof).is_ok()
    }

    /// Each piece goes in with its length, so that no two transcripts run together to the same bytes.
    fn mac(&self, role: &str, transcript: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = <Hmac<Sha256> as KeyInit>::new(&self.0.into_block());
        for piece in [role.as_bytes()].iter().chain(transcript) {
            mac.update(&(piece.len() as u64).to_le_bytes());
            mac.update(piece);
        }
        mac
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Bytes that nobody can guess.
pub(super) fn random<const N: usize>() -> Result<[u8; N], BootstrapError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| BootstrapError::Io {
        doing: "asking the system for random bytes".into(),
        source: error.into(),
    })?;
    Ok(bytes)
}

/// HMAC wants its key as a block of the hash; a shorter key is padded with zeros.
trait IntoBlock {
    fn into_block(self) -> hmac::digest::Key<Hmac<Sha256>>;
}

impl IntoBlock for [u8; 32] {
    fn into_block(self) -> hmac::digest::Key<Hmac<Sha256>> {
        let mut block = hmac::digest::Key::<Hmac<Sha256>>::default();
        block[..32].copy_from_slice(&self);
        block
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proofs_depend_on_token_role_and_every_piece() {
        let token = Token::derive(b"secret");
        let proof = token.sign("role", &[b"ab", b"c"]);
        assert!(token.verify("role", &[b"ab", b"c"], &proof));
        assert!(!token.verify("role", &[b"a", b"bc"], &proof));
        assert!(!token.verify("other", &[b"ab", b"c"], &proof));
        assert!(!Token::derive(b"Secret").verify("role", &[b"ab", b"c"], &proof));
        assert!(!token.verify("role", &[b"ab", b"c"], &proof[..31]));
    }

    #[test]
    fn hmac_is_the_standard_one() {
        // RFC 4231, case 1, with its 20-byte key padded as every shorter key is.
        let mut key = [0; 32];
        key[..20].fill(0x0b);
        let mut mac = <Hmac<Sha256> as KeyInit>::new(&key.into_block());
        mac.update(b"Hi There");
        assert_eq!(mac.finalize().into_bytes()[..4], [0xb0, 0x34, 0x4c, 0x61]);
    }

    #[test]
    fn tokens_are_not_printed_and_not_repeated() {
        let token = Token::random().unwrap();
        assert_eq!(format!("{token:?}"), "Token(..)");
        assert_eq!(token.reveal().len(), 64);
        assert_ne!(token, Token::random().unwrap());
    }
}
