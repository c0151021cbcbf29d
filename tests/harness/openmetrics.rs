//! Reads the page of `GET /metrics`.

use super::{Client, within};

/// The values of one page, by the text of their series.
#[derive(Debug)]
pub(crate) struct Page(pub(crate) String);

impl Page {
    /// Asks the daemon for its page.
    pub(crate) async fn of(client: &Client) -> Self {
        let response = client.get("/metrics").await;
        assert_eq!(response.status, 200, "{response:?}");
        assert_eq!(response.content_type, "application/openmetrics-text; version=1.0.0; charset=utf-8");
        let text = String::from_utf8(response.body.to_vec()).expect("the page is UTF-8");
        assert!(text.ends_with("# EOF\n"), "{text}");
        Self(text)
    }

    /// Returns the value of a series, written as on the page.
    pub(crate) fn value(&self, series: &str) -> Option<f64> {
        let line = self.0.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.map(|value| value.parse().expect("a value is a number"))
    }

    /// Returns the sum of the series of a family whose labels contain this text.
    pub(crate) fn sum(&self, family: &str, labels: &str) -> f64 {
        let of = |line: &&str| line.starts_with(&format!("{family}{{")) && line.contains(labels);
        let values = self.0.lines().filter(of).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        values.sum()
    }
}

/// Polls the page until it satisfies `condition`.
pub(crate) async fn page_with(client: &Client, what: &str, condition: impl Fn(&Page) -> bool) -> Page {
    within(what, async {
        loop {
            let page = Page::of(client).await;
            if condition(&page) {
                return page;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    })
    .await
}
