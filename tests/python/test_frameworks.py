# SPDX-License-Identifier: Apache-2.0
"""Plans in Hugging Face's Trainer, in Accelerate and in Lightning's Trainer, if they are installed."""

import gc
import glob
import importlib.util
import os
import tempfile
import unittest
import unittest.mock

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import comp
from support import QUICK, operators_of, plan_file, same, some_images


def there(*packages):
    return unittest.skipUnless(all(importlib.util.find_spec(p) for p in packages), f'no {" and ".join(packages)} here')


# A plan saves a second for each operator that is low, so that no result depends on a clock.
LOW = {'precisions': ['bf16'], 'tune': False, 'batches_per_epoch': 16, 'race': QUICK['race']}
step_of_autocast = comp.Autocast.step


def step_of_modelled_seconds(plan, loss):
    step_of_autocast(plan, loss, seconds=100.0 - plan.letters.count('b'))


class OwnSteps(unittest.TestCase):
    """In loops of a framework's, which tell plans no seconds."""

    def setUp(self):
        patch = unittest.mock.patch.object(comp.Autocast, 'step', step_of_modelled_seconds)
        patch.start()
        self.addCleanup(patch.stop)


@there('transformers', 'accelerate')
class HuggingFace(OwnSteps):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def model(self):
        import transformers

        torch.manual_seed(5)
        shape = transformers.BertConfig(
            vocab_size=64,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=16,
            num_labels=2,
        )
        return transformers.BertForSequenceClassification(shape)

    def trainer(self, steps=400, planned=True, search=LOW, model=None, kind=None, callbacks=(), **more):
        import transformers

        import comp.transformers

        model = model or self.model()
        words = torch.randint(0, 64, (96, 8), generator=torch.Generator().manual_seed(3))
        data = [{'input_ids': w, 'attention_mask': torch.ones_like(w), 'labels': w[0] % 2} for w in words]
        arguments = transformers.TrainingArguments(
            os.path.join(self.folder, 'out'),
            max_steps=steps,
            per_device_train_batch_size=8,
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            seed=5,
            **{'save_strategy': 'no', 'logging_strategy': 'no'} | more,
        )
        plan = comp.transformers.PlanCallback(os.path.join(self.folder, 'plan.json'), search=search, forced=True)
        return (kind or transformers.Trainer)(
            model,
            arguments,
            train_dataset=data,
            eval_dataset=data[:32],
            callbacks=[plan, *callbacks] if planned else list(callbacks),
        ), plan

    def formats_of(self, model):
        """Those in which a layer runs, by whether gradients are on."""
        formats = {True: set(), False: set()}
        linear = model.bert.encoder.layer[0].output.dense
        linear.register_forward_hook(lambda m, i, out: formats[torch.is_grad_enabled()].add(out.dtype))
        return formats

    def test_a_training_finds_the_plan_and_the_next_one_uses_it(self):
        trainer, callback = self.trainer(eval_strategy='steps', eval_steps=60)
        trainer.train()
        self.assertEqual(trainer.state.global_step, 400)
        self.assertEqual(callback.plan._inner.batches, 400)
        self.assertIn('b', callback.plan.found.plan)
        self.assertEqual(comp.load(callback.path).letters, callback.plan.found.plan)
        for again in (trainer, self.trainer(24)[0]):  # the same Trainer, and another process's
            formats = self.formats_of(again.model)
            again.args.max_steps = 24
            again.train()
            self.assertIn('eval_loss', again.evaluate())
            self.assertEqual(formats, {True: {torch.float32, torch.bfloat16}, False: {torch.bfloat16}})  # FP32 comes first

    def test_in_fp32_the_training_is_the_trainers_own_bit_for_bit(self):
        """Also if it accumulates, clips, has a loss of its own, logs and evaluates."""
        import transformers

        class Smoothed(transformers.Trainer):
            def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
                out = model(**inputs)
                loss = cross_entropy(out.logits, inputs['labels'], label_smoothing=0.1)
                return (loss, out) if return_outputs else loss

        own = {
            'gradient_accumulation_steps': 3,
            'max_grad_norm': 0.1,
            'eval_strategy': 'steps',
            'eval_steps': 7,
            'logging_strategy': 'steps',
            'logging_steps': 5,
            'kind': Smoothed,
        }
        plain, _ = self.trainer(120, planned=False, **own)
        planned, callback = self.trainer(120, search={'policy': 'all_fp32', 'batches_per_epoch': 8}, **own)
        for each in (plain, planned):
            torch.manual_seed(7)
            each.train()
        self.assertTrue(same(dict(plain.model.state_dict()), dict(planned.model.state_dict())))
        losses = [[log['loss'] for log in each.state.log_history if 'loss' in log] for each in (plain, planned)]
        self.assertEqual(*losses)
        self.assertEqual(callback.plan._inner.batches, 120)
        self.assertIsNotNone(callback.plan.found)
        self.assertIn('cross_entropy', ' '.join(op.kind for op in callback.plan.found.operators))

    def test_losses_of_accumulated_batches_add_up_to_the_one_that_the_trainer_logs(self):
        losses = []

        def step(plan, loss):
            losses.append(float(loss))
            step_of_modelled_seconds(plan, loss)

        with unittest.mock.patch.object(comp.Autocast, 'step', step):
            own = {'gradient_accumulation_steps': 2, 'logging_strategy': 'steps', 'logging_steps': 1}
            trainer, _ = self.trainer(10, **own)
            trainer.train()
        logged = [log['loss'] for log in trainer.state.log_history if 'loss' in log]
        self.assertEqual(len(losses), 10)
        for mine, theirs in zip(losses, logged):
            self.assertAlmostEqual(mine, float(theirs), places=3)

    def test_a_training_goes_on_from_the_trainers_checkpoint_and_its_search_too(self):
        import transformers

        class Stops(transformers.TrainerCallback):
            def on_step_end(self, args, state, control, **_):
                control.should_training_stop = state.global_step == 100

        kept = {'save_strategy': 'steps', 'save_steps': 100}
        first, callback = self.trainer(callbacks=[Stops()], **kept)
        first.train()
        self.assertIsNone(callback.plan.found)
        callback.plan = None
        with open(callback.path + '.search') as learned:
            self.assertIn('"stage":"losses"', learned.read())
        second, callback = self.trainer(**kept)
        second.train(resume_from_checkpoint=True)
        self.assertEqual(second.state.global_step, 400)
        self.assertEqual(callback.plan._inner.batches, 300)
        self.assertIn('b', callback.plan.found.plan)

    def test_an_exception_in_the_middle_comes_out_and_the_next_training_is_sound(self):
        import transformers

        class Raises(transformers.TrainerCallback):
            at = 30

            def on_substep_end(self, args, state, control, **_):
                if state.global_step == self.at:
                    Raises.at = -1
                    raise ZeroDivisionError('mine')

        own = {'gradient_accumulation_steps': 2, 'callbacks': [Raises()]}
        trainer, callback = self.trainer(200, **own)
        with self.assertRaisesRegex(ZeroDivisionError, 'mine'):
            trainer.train()
        self.assertEqual(callback.plan._inner.batches, 30)
        trainer.train()
        self.assertEqual(callback.plan._inner.batches, 200)
        self.assertIn('b', callback.plan.found.plan)
        self.assertNotIn('backward', vars(trainer.accelerator))

    def test_a_training_step_that_shows_no_loss_is_told(self):
        import transformers

        class Alone(transformers.Trainer):
            def training_step(self, model, inputs, num_items_in_batch=None):
                model.train()
                loss = self.compute_loss(model, inputs)
                loss.backward()
                return loss.detach()

        with self.assertRaisesRegex(comp.SettingsError, 'step 1 gave Accelerator.backward no loss'):
            self.trainer(4, kind=Alone)[0].train()

    @there('peft')
    def test_what_an_adapter_leaves_frozen_is_not_copied(self):
        import peft

        adapted = peft.get_peft_model(self.model(), peft.LoraConfig(target_modules=['query', 'value'], r=2))
        trainer, callback = self.trainer(model=adapted)
        copied = []
        save = comp._loop._KeptState.save

        def noted(kept):
            save(kept)
            copied.append({id(p) for p, _ in kept._kept[1]})

        with unittest.mock.patch.object(comp._loop._KeptState, 'save', noted):
            trainer.train()
        self.assertIn('b', callback.plan.found.plan)
        self.assertEqual(copied[0], {id(p) for p in adapted.parameters() if p.requires_grad})

    def test_a_language_model_whose_loss_counts_the_batchs_tokens(self):
        import transformers

        import comp.transformers

        torch.manual_seed(5)
        shape = transformers.GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=1, n_head=2)
        model = transformers.GPT2LMHeadModel(shape)
        data = [{'input_ids': w, 'labels': w} for w in torch.randint(0, 64, (96, 12))]
        arguments = transformers.TrainingArguments(
            self.folder,
            max_steps=120,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            report_to=[],
            save_strategy='no',
            disable_tqdm=True,
            use_cpu=True,
        )
        callback = comp.transformers.PlanCallback(os.path.join(self.folder, 'plan.json'), search=LOW)
        transformers.Trainer(model, arguments, train_dataset=data, callbacks=[callback]).train()
        self.assertEqual(callback.plan._inner.batches, 120)
        self.assertEqual(callback.plan.left[0], 0)

    def test_a_product_that_the_model_upcasts_is_protected_and_what_is_around_it_is_not(self):
        import transformers

        torch.manual_seed(5)
        shape = transformers.GPT2Config(
            vocab_size=64,
            n_positions=16,
            n_embd=32,
            n_layer=1,
            n_head=2,
            reorder_and_upcast_attn=True,
            attn_implementation='eager',
        )
        model = transformers.GPT2LMHeadModel(shape)
        words = torch.randint(0, 64, (2, 8))

        def run(plan):
            with plan:
                return model(input_ids=words, labels=words).loss

        self.assertEqual([op.name for op in operators_of(model, run) if op.fixed_by_author], ['baddbmm'])
        low = ('addmm', 'baddbmm', 'linear')
        plan = comp.plan(plan_file(model, run, kinds=low, protect_blocks=False), model)
        for _ in range(2):
            run(plan).backward()  # the model raises if the product is not in FP32
        self.assertEqual(plan.letters.count('b'), 5)

    def test_the_trainers_own_mixed_precision_is_refused(self):
        with self.assertRaisesRegex(comp.SettingsError, 'bf16 or fp16 of TrainingArguments'):
            self.trainer(4, bf16=True)[0].train()


@there('accelerate')
class Accelerate(unittest.TestCase):
    def train(self, batches, plan_of, load=None, save=None):
        import accelerate

        torch.manual_seed(4)
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
        x, y = some_images(64)
        net = nn.Sequential(nn.Linear(192, 32), nn.ReLU(), nn.Linear(32, 4))
        loader = DataLoader(TensorDataset(x.flatten(1), y), 16)
        net, optimizer, loader = accelerator.prepare(net, torch.optim.Adam(net.parameters(), 1e-3), loader)
        if load:
            accelerator.load_state(load)
        plan = plan_of(net, optimizer)
        while batches > 0:
            for inputs, labels in loader:
                with accelerator.accumulate(net):
                    with plan or accelerator.autocast():
                        loss = cross_entropy(net(inputs), labels)
                    accelerator.backward(loss)
                    optimizer.step()
                    optimizer.zero_grad()
                if plan and accelerator.sync_gradients:
                    plan.step(loss, seconds=100.0 - plan.letters.count('b'))
                batches -= accelerator.sync_gradients
        if save:
            accelerator.save_state(save)
        return net, plan

    def test_a_loop_finds_its_plan_and_in_fp32_has_the_bits_of_the_loop_with_autocast(self):
        plain, _ = self.train(200, lambda net, optimizer: None)
        net, plan = self.train(
            200, lambda net, optimizer: comp.autocast(net, optimizer=optimizer, **LOW | {'policy': 'all_fp32'})
        )
        self.assertEqual(plan._inner.batches, 200)
        self.assertTrue(same(dict(plain.state_dict()), dict(net.state_dict())))
        _, plan = self.train(400, lambda net, optimizer: comp.autocast(net, optimizer=optimizer, **LOW))
        self.assertIn('b', plan.found.plan)

    def test_a_training_goes_on_from_accelerates_checkpoint_and_its_search_too(self):
        with tempfile.TemporaryDirectory() as folder:
            file, state = os.path.join(folder, 'plan.json'), os.path.join(folder, 'state')

            def plan_of(net, optimizer):
                return comp.autocast(net, optimizer=optimizer, file=file, **LOW)

            self.assertIsNone(self.train(150, plan_of, save=state)[1].found)
            gc.collect()
            net, plan = self.train(60, plan_of, load=state)  # a search that begins anew needs three times as many
            self.assertEqual(plan._inner.batches, 60)
            self.assertIn('b', comp.load(file).letters)
            with torch.no_grad(), plan:
                self.assertEqual(net(torch.zeros(1, 192)).dtype, torch.bfloat16)

    def test_a_step_of_the_wrapped_optimizer_without_one_of_the_plan_is_told(self):
        with self.assertRaisesRegex(comp.Error, "again after the optimizer's step"):
            with unittest.mock.patch.object(comp.Autocast, 'step', lambda plan, loss, seconds: None):
                self.train(4, lambda net, optimizer: comp.autocast(net, optimizer=optimizer, **LOW))


@there('lightning')
class Lightning(OwnSteps):
    def setUp(self):
        import lightning

        super().setUp()

        x, y = some_images(64)
        self.loader = loader = DataLoader(TensorDataset(x.flatten(1), y), 16)
        self.outputs = outputs = []

        class Module(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                torch.manual_seed(4)
                self.net = nn.Sequential(nn.Linear(192, 32), nn.ReLU(), nn.Linear(32, 4))
                self.net[2].register_forward_hook(lambda m, i, out: outputs.append((self.training, out.dtype)))

            def training_step(self, batch, index):
                loss = cross_entropy(self.net(batch[0]), batch[1])
                self.log('train', loss)
                self.log_dict({'twice': 2 * loss.detach()})
                return loss

            def validation_step(self, batch, index):
                self.log('loss', cross_entropy(self.net(batch[0]), batch[1]))

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), 0.1)

        def fit(module, plugins, epochs, checkpoint=None, **more):
            lightning.Trainer(
                max_epochs=epochs,
                accelerator='cpu',
                logger=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                plugins=plugins,
                **{'enable_checkpointing': False} | more,
            ).fit(module, loader, loader, ckpt_path=checkpoint)

        self.module, self.fit = Module, fit

    def test_a_trainer_trains_and_validates_under_a_plan(self):
        import comp.lightning

        module = self.module()
        batch = next(iter(self.loader))

        def run(plan):
            with plan:
                return module.training_step(batch, 0)

        path = plan_file(module, run, kinds=('linear',))
        precision = comp.lightning.PlanPrecision(path, search={'batches_per_epoch': 1, 'forced': True})
        self.outputs.clear()
        self.fit(module, [precision], 2, num_sanity_val_steps=0)
        training = [kind for trains, kind in self.outputs if trains]
        self.assertEqual(training, [torch.float32] * 2 + [torch.bfloat16] * 6)  # recorded, and compared with
        self.assertEqual({kind for trains, kind in self.outputs if not trains}, {torch.bfloat16})

    def test_in_fp32_a_training_without_a_file_is_the_trainers_own_bit_for_bit(self):
        import comp.lightning

        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, 'plan.json')
            search = {'policy': 'all_fp32', 'batches_per_epoch': 8, 'tune': False}
            precision = comp.lightning.PlanPrecision(file, search=search)
            plain, planned = self.module(), self.module()
            for module, plugins in ((plain, []), (planned, [precision])):
                self.fit(module, plugins, 60, accumulate_grad_batches=2)
            for mine, theirs in zip(plain.parameters(), planned.parameters()):
                self.assertTrue(torch.equal(mine, theirs))
            self.assertEqual(precision.plan._inner.batches, 120)
            self.assertEqual(set(comp.load(file).letters), {'1'})
            again = comp.lightning.PlanPrecision(file)
            self.fit(self.module(), [again], 1)
            self.assertEqual(set(again.plan.letters), {'1'})

    def test_a_training_goes_on_from_the_trainers_checkpoint_and_its_search_too(self):
        import comp.lightning

        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, 'plan.json')
            own = {'default_root_dir': folder, 'enable_checkpointing': True}
            first = comp.lightning.PlanPrecision(file, search=LOW | {'batches': 400})
            self.fit(self.module(), [first], 41, **own)
            self.assertIsNone(first.plan.found)
            first.plan = None
            gc.collect()
            (checkpoint,) = glob.glob(f'{folder}/checkpoints/*.ckpt')
            second = comp.lightning.PlanPrecision(file, search=LOW | {'batches': 400})
            self.fit(self.module(), [second], 51, checkpoint, **own)
            self.assertEqual(second.plan._inner.batches, 40)  # a search that begins anew needs four times as many
            self.assertIn('b', comp.load(file).letters)
            self.assertEqual(self.outputs[-1], (False, torch.bfloat16))

    def test_on_several_ranks_the_plan_has_the_exchange_of_gradients(self):
        import comp.lightning

        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, 'plan.json')
            search = {'policy': 'all_fp32', 'batches_per_epoch': 8, 'tune': False}
            ranks = {'strategy': 'ddp_fork', 'devices': 2}
            plain, planned = self.module(), self.module()
            for module, plugins in ((plain, []), (planned, [comp.lightning.PlanPrecision(file, search=search)])):
                self.fit(module, plugins, 60, **ranks)
            for mine, theirs in zip(plain.parameters(), planned.parameters()):
                self.assertTrue(torch.equal(mine, theirs))
            self.assertIn('all_reduce', [kind for _, kind, _ in comp.load(file).operators])


if __name__ == '__main__':
    unittest.main()
