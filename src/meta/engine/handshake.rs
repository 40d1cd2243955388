//! What went wrong with TLS, found inside the error of whichever crate has made the connection, as a sentence that names
//! the options to look at.

use crate::base::FaultKind;
use rustls::AlertDescription;
use std::error::Error;
use std::io;

/// The options of a kind of meta URL that have to do with it.
pub struct TlsNames {
    /// Whom to believe.
    pub trust: &'static str,
    /// Who we are.
    pub identity: &'static str,
}

/// Why the two could not agree, where the reason lies in what either of them shows or believes: trying again alone does
/// not help. A connection that broke is none.
pub fn refusal(error: &(dyn Error + 'static), names: &TlsNames) -> Option<(FaultKind, String)> {
    use rustls::Error as Tls;
    let TlsNames { trust, identity } = names;
    match cause(error)? {
        error @ Tls::InvalidCertificate(_) => Some((
            FaultKind::Config,
            format!("the server's certificate is not believed ({trust} of the meta URL says whom to believe): {error}"),
        )),
        Tls::AlertReceived(
            alert @ (AlertDescription::CertificateRequired
            | AlertDescription::BadCertificate
            | AlertDescription::UnknownCA
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateExpired
            | AlertDescription::AccessDenied
            | AlertDescription::HandshakeFailure),
        ) => Some((
            FaultKind::Denied,
            format!(
                "the server wants a certificate of this client that it believes ({identity} of the meta URL): {alert:?}"
            ),
        )),
        Tls::InvalidMessage(_) => {
            Some((FaultKind::Config, "the server does not speak TLS at this port, and the meta URL asks for it".into()))
        }
        _ => None,
    }
}

fn cause<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(tls) = error.downcast_ref() {
            return Some(tls);
        }
        // What an I/O error holds is not its source: that is the source of what it holds.
        let held = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = match held {
            Some(held) => Some(held as &(dyn Error + 'static)),
            None => error.source(),
        };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_found_inside_other_errors_and_a_broken_connection_is_none() {
        let names = TlsNames { trust: "cacert", identity: "cert and key" };
        let wrapped = |error: rustls::Error| io::Error::other(io::Error::other(error));
        let unknown = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        let (kind, said) = refusal(&wrapped(unknown), &names).unwrap();
        assert!(kind == FaultKind::Config && said.contains("cacert") && said.contains("UnknownIssuer"), "{said}");
        let asked = rustls::Error::AlertReceived(AlertDescription::CertificateRequired);
        let (kind, said) = refusal(&wrapped(asked), &names).unwrap();
        assert!(kind == FaultKind::Denied && said.contains("cert and key"), "{said}");
        assert!(refusal(&wrapped(rustls::Error::DecryptError), &names).is_none());
        assert!(refusal(&io::Error::from(io::ErrorKind::ConnectionReset), &names).is_none());
    }
}
