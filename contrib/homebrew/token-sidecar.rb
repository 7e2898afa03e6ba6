class TokenSidecar < Formula
  include Language::Python::Virtualenv

  desc "Token counts, context usage and costs of AI conversations"
  homepage "https://github.com/token-sidecar/token-sidecar"
  url "https://files.pythonhosted.org/packages/source/t/token-sidecar/token_sidecar-0.1.0.tar.gz"
  # At the first release, replace the URL and the checksum, and run `brew update-python-resources token-sidecar`.
  sha256 "0000000000000000000000000000000000000000000000000000000000000000"
  license "MIT"

  depends_on "pybind11" => :build
  depends_on "rust" => :build
  depends_on "abseil"
  depends_on "python@3.14"
  depends_on "re2"

  def install
    virtualenv_install_with_resources
  end

  test do
    (testpath/"hello.md").write "hello world"
    assert_match "2 hello.md", shell_output("#{bin}/token-sidecar count --model gpt-5 hello.md")
  end
end
