"""Which attention implementations isolate packed documents, by transformers' model types.

Measured with `TRANSFORMERS` on tiny random copies: other documents' tokens were changed, which must move no
logit, and each document was run alone. Flash attention was a stand-in that attends by the offsets it is
handed. Whoever is not listed has not been tried.
"""

from __future__ import annotations

TRANSFORMERS = "5.24"
"""The version that the table was measured with."""

FLASH, FLEX, SDPA, EAGER = "flash_attention_2", "flex_attention", "sdpa", "eager"

_TRIED: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        (FLASH, FLEX, SDPA, EAGER),
        """apertus apertus1p5_text arcee axk1 beam bitnet cohere cohere2 cohere2_moe ctrl cwm deepseek_v3
        diffllama dory ernie4_5 ernie4_5_moe exaone exaone4 exaone_moe flex_olmo gemma gemma3_text
        gemma3n_text gemma4_unified_text glm glm4 glm4_moe glm4_moe_lite gpt_neox granite granitemoe
        granitemoeshared helium hrm_text hunyuan_v1_dense hunyuan_v1_moe hy_v3 hyperclovax internlm3
        iquestcoder jais2 jetmoe kolibri1 laguna llama mellum minicpm3 minimax_m2 ministral mistral mixtral
        modernbert-decoder nanochat olmo olmo2 olmo3 phi phi3 phimoe qwen2 qwen2_moe qwen3 qwen3_moe
        sarvam_mla sarvam_moe seed_oss smollm3 solar_open starcoder2 whisper youtu""",
    ),
    ((FLASH, SDPA, EAGER), "aria_text gpt2 gpt_bigcode minimax_m3_vl_text olmoe persimmon"),
    ((FLEX, SDPA, EAGER), "nemotron"),
    ((FLASH, SDPA), "llama4_text moshi"),
    ((SDPA, EAGER), "doge falcon stablelm"),
    ((SDPA,), "axk2 deepseek_v32 glm_moe_dsa"),
    # Their masks are made without the positions, so that documents must be separated by an explicit mask.
    (
        (FLASH, FLEX, EAGER),
        """afmoe bert bert-generation biogpt camembert data2vec-text electra ernie gemma2 opt
        roberta roberta-prelayernorm roc_bert vaultgemma xlm-roberta xlm-roberta-xl""",
    ),
    ((FLASH, EAGER), "flint gpt_oss granite_swa granitemoe_swa mimo_v2_flash"),
    ((EAGER,), "big_bird git gpt_neo gpt_neox_japanese megatron-bert mpt rembert roformer xglm"),
    # Recurrent layers, which are handed the offsets and refuse a packed row without their kernels.
    (
        (FLASH, SDPA),
        """bailing_hybrid bamba falcon_h1 granitemoehybrid kimi_linear lara_mini lfm3 nemotron_h olmo_hybrid
        qwen3_5_moe_text qwen3_5_text qwen3_next qwen4_exp_text zamba2""",
    ),
)

ISOLATES: dict[str, tuple[str, ...]] = {
    name: implementations for implementations, names in _TRIED for name in names.split()
}
"""The implementations that keep the documents of a packed row apart, by model type."""

_POSITIONS = "counts positions along the row and takes none, so that they cannot begin anew"
_STATE = "carries a state along the row that no offsets interrupt"
_MASK = "takes no mask that tells documents, only one of padding"
_WHOLE_ROWS: tuple[tuple[str, str], ...] = (
    (_POSITIONS, "bart bigbird_pegasus blenderbot blenderbot-small marian mbart mvp pegasus plbart trocr"),
    (_STATE, "falcon_mamba inkling_text jamba mamba mamba2 minimax recurrent_gemma rwkv zaya"),
    (_MASK, "bloom openai-gpt"),
)

ONE_A_ROW: dict[str, str] = {name: reason for reason, names in _WHOLE_ROWS for name in names.split()}
"""Why a packed row cannot be isolated, by model type; a row of one document can."""

_ENCODERS = """bert bert-generation big_bird camembert data2vec-text electra ernie megatron-bert rembert
    roberta roberta-prelayernorm roc_bert roformer xlm-roberta xlm-roberta-xl xmod"""

ENCODERS = frozenset(_ENCODERS.split())
"""Model types that are causal only where their config says ``is_decoder``."""
