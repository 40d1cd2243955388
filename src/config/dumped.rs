//! The volume's record in a dump (`spec/metadata.md` 9): what is written of it, and which secrets are left out.

use super::seal::{REMOVED, Secret};
use super::volume::{VolumeFormat, go_json};
use serde_json::Value;

impl VolumeFormat {
    /// The document as it stands in a dump: laid out as in a JSON dump, or as it is stored. Secrets become `removed`
    /// unless they are to be kept. The key of the data stays in JSON dumps, sealed, as the peer has it: without it a
    /// backup is of no use.
    pub fn dumped(&self, keep_secrets: bool, binary: bool) -> Vec<u8> {
        let mut format = self.clone();
        for (_, secret) in format.secrets_of_dump(keep_secrets, binary) {
            *secret = Secret::new(REMOVED);
        }
        let indent = if binary { "" } else { "  " };
        let text = go_json(&Value::Object(format.object(false)), indent);
        if binary { text.into_bytes() } else { text.replace('\n', "\n  ").into_bytes() }
    }

    /// What `dumped` leaves out.
    pub fn secrets_left_out(&self, keep_secrets: bool, binary: bool) -> Vec<&'static str> {
        self.clone().secrets_of_dump(keep_secrets, binary).into_iter().map(|(name, _)| name).collect()
    }

    fn secrets_of_dump(&mut self, keep_secrets: bool, binary: bool) -> Vec<(&'static str, &mut Secret)> {
        let secrets = [
            ("secret key", &mut self.secret_key, true),
            ("session token", &mut self.session_token, true),
            ("encryption key", &mut self.encrypt_key, binary),
        ];
        let left_out = |secret: &Secret, out: bool| out && !keep_secrets && !secret.is_empty();
        secrets.into_iter().filter(|(_, secret, out)| left_out(secret, *out)).map(|(name, s, _)| (name, s)).collect()
    }

    /// The secrets that a dump left out and that were not set again.
    pub fn secrets_removed(&self) -> Vec<&'static str> {
        let secrets = [
            ("secret key", &self.secret_key),
            ("session token", &self.session_token),
            ("encryption key", &self.encrypt_key),
        ];
        secrets.into_iter().filter(|(_, secret)| secret.expose() == REMOVED).map(|(name, _)| name).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::volume::OpenSecrets;

    fn with_secrets() -> VolumeFormat {
        let mut format = VolumeFormat::new("vol", "58e59682-7faf-4d9f-a900-6d35c920d84b");
        let secret = |text: &str| Secret::new(text);
        let secrets = OpenSecrets {
            secret_key: secret("hunter1"),
            session_token: secret("hunter2"),
            encrypt_key: secret("hunter3"),
        };
        format.set_secrets(&secrets, false).unwrap();
        format
    }

    #[test]
    fn secrets_are_left_out_unless_they_are_asked_for() {
        let format = with_secrets();
        let dumped = |keep, binary| String::from_utf8(format.dumped(keep, binary)).unwrap();
        assert!(!dumped(false, true).contains("hunter"));
        let json = dumped(false, false);
        assert!(
            !json.contains("hunter1") && !json.contains("hunter2") && json.contains("hunter3"),
            "as the peer has it"
        );
        assert_eq!(dumped(true, true).matches("hunter").count(), 3);
        assert_eq!(format.secrets_left_out(false, false), ["secret key", "session token"]);
        assert_eq!(format.secrets_left_out(false, true).len(), 3);
        assert!(format.secrets_left_out(true, true).is_empty());
        let loaded = VolumeFormat::from_json(json.as_bytes()).unwrap();
        assert_eq!(loaded.secrets_removed(), ["secret key", "session token"]);
        assert!(format.secrets_removed().is_empty());
    }

    #[test]
    fn the_layout_is_that_of_the_form() {
        let format = with_secrets();
        let json = String::from_utf8(format.dumped(false, false)).unwrap();
        assert!(json.starts_with("{\n    \"Name\": \"vol\",\n") && json.ends_with("\n  }"), "{json}");
        assert_eq!(format.dumped(true, true), format.to_json());
    }
}
