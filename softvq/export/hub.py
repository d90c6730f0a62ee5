"""A VQ-VAE with ``save_pretrained`` and ``from_pretrained``, by huggingface_hub (extra `hub`)."""

from pathlib import Path

from huggingface_hub import ModelHubMixin, hf_hub_download

from softvq.models import VQVAE, load_model, save_model

FILE = "model.safetensors"


class PretrainedVQVAE(
    VQVAE, ModelHubMixin, library_name="softvq", tags=["vector-quantization", "image-tokenizer"]
):
    """A `softvq.models.VQVAE` that can be saved to a folder or the hub, and loaded from there.

    The folder holds the file of `softvq.save_model` and a model card; no pickle, and no options
    outside of that file.

    Example:
        >>> import tempfile
        >>> from softvq import SoftVQ
        >>> folder = tempfile.mkdtemp()
        >>> model = PretrainedVQVAE.of(VQVAE(SoftVQ(8, 64, layout="channels_first")))
        >>> _ = model.save_pretrained(folder)
        >>> PretrainedVQVAE.from_pretrained(folder).quantizer.num_codes
        8
    """

    @classmethod
    def of(cls, model: VQVAE) -> "PretrainedVQVAE":
        """The same model with these methods: its parts are shared, its mode is kept.

        Args:
            model: As `softvq.models.save_model` takes it.
        """
        taken = cls(model.quantizer, model.config)
        taken.encoder, taken.decoder = model.encoder, model.decoder
        return taken.train(model.training)

    def _save_pretrained(self, save_directory: Path) -> None:
        save_model(self, save_directory / FILE)

    @classmethod
    def _from_pretrained(
        cls,
        *,
        model_id: str,
        revision: str | None,
        cache_dir: str | Path | None,
        force_download: bool,
        local_files_only: bool,
        token: str | bool | None,
        **options: object,
    ) -> "PretrainedVQVAE":
        unknown = sorted({*options} - {"config"})
        if unknown:
            raise ValueError(f"from_pretrained takes no {unknown}: all options are in {FILE}.")
        if Path(model_id).is_dir():
            path = str(Path(model_id) / FILE)
        else:
            path = hf_hub_download(
                repo_id=model_id,
                filename=FILE,
                revision=revision,
                cache_dir=cache_dir,
                force_download=force_download,
                token=token,
                local_files_only=local_files_only,
            )
        return cls.of(load_model(path).eval())
